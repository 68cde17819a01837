"""Bad snapshots: one clear error each, and nothing written.

The error names file, line and column.
"""

from __future__ import annotations

import gzip
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pbg_tasks.errors import InputError
from pbg_tasks.prepare.delimited import first_record
from pbg_tasks.prepare.text_files import MAX_LINE_BYTES
from pbg_tasks.storage.columnar import list_files
from tests.prepare.inputs import GOOD, TYPED, check, make_spec, put, refusal


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("part.csv", lambda data: data),
        ("part.csv.gz", gzip.compress),
        ("part.csv.zst", lambda data: zstandard.ZstdCompressor().compress(data)),
    ],
)
def test_good_snapshot_in_each_compression_is_read(tmp_path, name, pack):
    put(tmp_path, pack(GOOD.encode()), name)
    report = check(make_spec(tmp_path), tmp_path)
    assert (report.edges, report.relations) == (3, {"likes": 2, "knows": 1})


def test_files_with_quotes_and_delimiters_are_read(tmp_path):
    put(tmp_path, "a b|likes|'x|y'\n", "1.csv")
    put(tmp_path, "a b|knows|c\n", "2.csv")
    put(tmp_path, "not read", "_SUCCESS")
    spec = make_spec(
        tmp_path,
        snapshots={"header": False, "delimiter": "|", "quote": "'"},
        columns={"lhs": "column0", "rel": "column1", "rhs": "column2"},
    )
    assert check(spec, tmp_path).edges == 2


HEADERLESS = {
    "snapshots": {"header": False},
    "columns": {"lhs": "column0", "rel": "column1", "rhs": "column2"},
}
NO_ROWS = {"1.csv": b"", "2.csv": "\ufeff".encode(), "3.csv.gz": gzip.compress(b""), "4.csv.gz": b""}
NO_ROWS["5.csv.zst"] = zstandard.ZstdCompressor().compress(b"")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_headerless_record_with_line_break_is_read(tmp_path, end):
    put(tmp_path, f'"a{end}x",likes,b,"n{end}m",1{end}c,likes,d,n,1{end}')
    assert check(make_spec(tmp_path, **HEADERLESS), tmp_path).edges == 2


def test_headerless_record_with_open_quote_is_refused(tmp_path):
    put(tmp_path, '"a,likes,b\n' + "c,likes,d\n" * 200_000)
    assert "no column 'column1' (columns.rel); its columns are: column0" in refusal(
        make_spec(tmp_path, **HEADERLESS), tmp_path
    )


def test_headerless_record_without_end_is_read_in_part(tmp_path):
    """It takes seventy times its bytes in memory."""
    path, spec = put(tmp_path, '"a\n",' * 1_000_000), make_spec(tmp_path, **HEADERLESS)
    assert 3 < len(first_record(spec.snapshots, str(path), str(path))) < MAX_LINE_BYTES / 4


def test_headerless_files_of_no_bytes_have_no_rows(tmp_path):
    for name, data in NO_ROWS.items():
        put(tmp_path, data, name)
    spec = make_spec(tmp_path, **HEADERLESS)
    message = refusal(spec, tmp_path)
    assert "the snapshot has no edges (5 files, none with a row, as " in message
    assert str(tmp_path / "day" / "1.csv") in message

    put(tmp_path, "a,likes,b\nb,knows,a\n", "6.csv")
    shutil.rmtree(tmp_path / "scratch")
    assert check(spec, tmp_path).edges == 2

    put(tmp_path, "a,likes,b\na,likes,\n", "7.csv")
    shutil.rmtree(tmp_path / "scratch")
    assert "7.csv, line 2: empty id in column rhs (1 such rows" in refusal(spec, tmp_path)


def test_damaged_page_is_named_among_several_files(tmp_path):
    """DuckDB's error of such a page names no file."""
    for name in ("1.parquet", "2.parquet", "3.parquet"):
        put(tmp_path, b"", name)
        ends = [f"e{number}" for number in range(5000)]
        table = pa.table({"lhs": ends, "rel": ["likes"] * 5000, "rhs": ends[::-1]})
        pq.write_table(table, tmp_path / "day" / name, use_dictionary=False, compression="gzip")
    path = tmp_path / "day" / "2.parquet"
    path.write_bytes(path.read_bytes()[:4] + bytes(40) + path.read_bytes()[44:])
    message = refusal(make_spec(tmp_path, snapshots={"format": "parquet"}), tmp_path)
    assert message.startswith(f"{path}: cannot be read: ")


def test_single_file_without_rows_is_named(tmp_path):
    put(tmp_path, b"", "1.csv")
    message = refusal(make_spec(tmp_path, **HEADERLESS), tmp_path)
    assert f"the snapshot has no edges (its only file, {tmp_path / 'day' / '1.csv'}, has no row)" in message


def test_headerless_file_with_empty_first_line_is_refused(tmp_path):
    put(tmp_path, "\na,likes,b\n")
    assert "part.csv, line 1: is empty; write an edge there, or remove the file" in refusal(
        make_spec(tmp_path, **HEADERLESS), tmp_path
    )


def test_text_in_utf16_is_refused(tmp_path):
    put(tmp_path, GOOD.encode("utf-16"))
    assert "part.csv, line 1: holds NUL characters, as text in UTF-16 does; write it as UTF-8" in refusal(
        make_spec(tmp_path), tmp_path
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + ",likes,b\n", ["line 5", "empty id in column lhs"]),
        (GOOD + "a,likes,\n", ["line 5", "empty id in column rhs"]),
        (GOOD + "a,,b\n", ["line 5", "empty relation"]),
        (GOOD + "a,lykes,b\n", ["line 5", "unknown relation 'lykes'", "did you mean 'likes'?"]),
        (GOOD + "a,lykes,b\n", ["name it in model.relations, or set model.dynamic_relations: true"]),
        (GOOD + "a,likes\n", ["part.csv", "Line: 5", "Expected Number of Columns: 3 Found: 2"]),
        (GOOD.replace("\n", "\r\n") + "a,likes\r\n", ["Line: 5", "Expected Number of Columns: 3 Found: 2"]),
        (GOOD.replace("\n", "\r\n") + "a,likes,b\n", ["one kind of line ends"]),
        (GOOD + GOOD, ["line 5", "has the names of the columns, as a header does; remove it (1 such rows"]),
        (GOOD + "a" * 5000 + ",likes,b\n", ["line 5", "longer than 4096 bytes"]),
        ("lhs,relation,rhs\na,likes,b\n", ["no column 'rel'", "columns.rel", "lhs, relation, rhs"]),
        ('lhs,rel,rhs,"note\na,likes,b,n\n', ["line 1", 'a " of the header encloses no whole name']),
        ('lhs,rel,rhs,"note\na,likes,b,n\na,likes,b,n"\nb,likes,a,n\n', ["line 1", "mend it"]),
        ('lhs,rel,rhs,"no"te\na,likes,b,n\n', ["line 1", "the rows after it would pass for one"]),
        ('lhs,rel,rhs, "note\na,likes,b,n\n', ["line 1", "snapshots.quote"]),
        ('\ufeff"note,",lhs,rel,rhs\nn,a,likes,b\n', ["line 1", "the rows after it would pass for one"]),
        ('"lhs";"rel";"rhs"\na;likes;b\n', ["no column 'lhs'", "the likely cause is the delimiter"]),
        ("lhs,rel,rhs\n", ["no edges"]),
        ("", ["line 1", "is empty; write the names of its columns there, or remove the file"]),
        ("lhs,lhs,rel,rhs\na,b,likes,c\n", ["2 columns named 'lhs'", "columns.lhs"]),
        ("lhs,rel,rhs\n\n\na,likes,b\n\n,likes,b\n", ["line 6", "empty id in column lhs"]),
        ('lhs,rel,rhs\n"a\nb\nc",likes,b\n,likes,b\n', ["line 5", "empty id in column lhs"]),
        (b"lhs,rel,rhs\na,likes,\xff\xfe\n", ["part.csv", "Line: 2", "is not utf-8 encoded.; write it as UTF-8"]),
    ],
)
def test_each_fault_of_a_csv_file_is_named(tmp_path, text, expected):
    path = put(tmp_path, text)
    message = refusal(make_spec(tmp_path), tmp_path)
    assert str(path) in message or "no edges" in message
    for part in expected:
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_headers_with_quoted_names_are_read(tmp_path, mark, end):
    header = mark + '"lhs","rel","rhs",5" wide,"a ""b"" c",, "d" ,  "e'
    put(tmp_path, end.join([header, "a,likes,b" + ",n" * 5, "b,likes,a" + ",n" * 5, ""]))
    assert check(make_spec(tmp_path), tmp_path).edges == 2


def test_header_of_many_blanks_is_refused(tmp_path):
    put(tmp_path, '"a"  ' * 200 + '"\na likes b\n')
    assert "part.csv, line 1: a " in refusal(make_spec(tmp_path, snapshots={"delimiter": " "}), tmp_path)


def test_fault_is_reported_for_its_own_file(tmp_path):
    put(tmp_path, GOOD, "1.csv")
    put(tmp_path, gzip.compress((GOOD + "a,likes,\n").encode()), "2.csv.gz")
    put(tmp_path, GOOD + ",likes,b\n" * 2, "3.csv")
    message = refusal(make_spec(tmp_path), tmp_path)
    assert "3.csv, line 5: empty id in column lhs (2 such rows in the snapshot)" in message


def test_bad_rows_of_one_file_are_least(tmp_path):
    """On Spark, other tasks check the other files."""
    put(tmp_path, GOOD + ",likes,b\n" * 2)
    message = refusal(make_spec(tmp_path, resources={"engine": "spark"}), tmp_path)
    assert message.endswith("line 5: empty id in column lhs (at least 2 such rows in the snapshot)")


def test_endless_line_is_not_quoted_in_full(tmp_path):
    put(tmp_path, GOOD + "a" * 3_000_000 + ",likes,b\n")
    assert len(refusal(make_spec(tmp_path), tmp_path)) < 1000


def test_unused_columns_may_have_any_name(tmp_path):
    put(tmp_path, ",lhs,LHS,rel,rhs,x,x\n0,a,b,likes,c,1,2\n")
    assert check(make_spec(tmp_path), tmp_path).edges == 1


@pytest.mark.parametrize(
    ("relations", "types", "loops"),
    [
        (["likes", "knows"], False, 1),
        (["likes"], False, 0),
        (["knows"], False, 1),
        (["likes", "knows"], True, 1),
        (None, False, 0),
    ],
)
def test_self_loops_are_within_one_type(tmp_path, relations, types, loops):
    """Item 1 is not user 1."""
    listed = [each for each in TYPED["relations"] if relations is None or each["name"] in relations]
    model = TYPED | {"relations": listed}
    if relations is None:
        model |= {"relations": listed[:1], "dynamic_relations": True, "global_emb": False}
    kinds = {"likes": "user,item", "knows": "user,user"}
    text = "".join(f"1,{each['name']},1,{kinds[each['name']]}\n" for each in listed)
    put(tmp_path, f"lhs,rel,rhs,lt,rt\n{text}")
    columns = {"lhs_type": "lt", "rhs_type": "rt"} if types else {}
    assert check(make_spec(tmp_path, model=model, columns=columns), tmp_path).self_loops == loops


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "x", ""])
def test_invalid_weights_are_refused(tmp_path, weight):
    put(tmp_path, f"lhs,rel,rhs,w\na,likes,b,0.5\nb,likes,a,{weight}\n")
    message = refusal(make_spec(tmp_path, columns={"weight": "w"}), tmp_path)
    assert "line 3: weight that is not a finite number of at least 0" in message


def test_weights_are_kept_unchanged(tmp_path):
    put(tmp_path, "lhs,rel,rhs,w\na,likes,b,0.5\nb,likes,a,2\n")
    assert check(make_spec(tmp_path, columns={"weight": "w"}), tmp_path).weights == (0.5, 2.0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            "a,likes,b,usr,item",
            "unknown entity type 'usr' in column 'lt' (columns.lhs_type) (did you mean 'user'?); add",
        ),
        ("a,likes,b,item,user", "relation 'likes' does not go from 'item' to 'user'"),
    ],
)
def test_types_that_do_not_fit_are_refused(tmp_path, row, expected):
    put(tmp_path, f"lhs,rel,rhs,lt,rt\na,likes,b,user,item\n{row}\n")
    message = refusal(make_spec(tmp_path, columns={"lhs_type": "lt", "rhs_type": "rt"}), tmp_path)
    assert expected in message
    assert "line 3" in message


def test_a_missing_snapshot_is_named(tmp_path):
    with pytest.raises(InputError, match="day"):
        list_files(str(tmp_path / "day"))


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999])
def test_truncated_parquet_is_named(tmp_path, keep):
    table = pa.table({"lhs": [f"e{i}" for i in range(5000)], "rel": ["likes"] * 5000, "rhs": ["x"] * 5000})
    path = tmp_path / "day" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(table, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert str(path) in refusal(make_spec(tmp_path, form="parquet"), tmp_path)


@pytest.mark.parametrize("text", [GOOD, "a\n"])
def test_text_read_as_parquet_names_format(tmp_path, text):
    put(tmp_path, text, "part.parquet")
    expected = "no whole Parquet file; if it is text, read it as such (snapshots.format: csv or tsv; `pbg import tsv`)"
    assert expected in refusal(make_spec(tmp_path, form="parquet"), tmp_path)


def test_damaged_parquet_data_is_named(tmp_path):
    table = pa.table({"lhs": [f"e{i}" for i in range(5000)], "rel": ["likes"] * 5000, "rhs": ["x"] * 5000})
    path = tmp_path / "day" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[1000:1100] = b"\x00" * 100
    path.write_bytes(data)
    assert str(path) in refusal(make_spec(tmp_path, form="parquet"), tmp_path)


def test_truncated_gzip_is_named(tmp_path):
    rows = "lhs,rel,rhs\n" + "".join(f"a{i},likes,b{i * 7919}\n" for i in range(20000))
    data = gzip.compress(rows.encode())
    path = put(tmp_path, data[: len(data) // 2], "part.csv.gz")
    assert str(path) in refusal(make_spec(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("lhs", "rel", "rhs", "lhs"), "2 columns named 'lhs' (columns.lhs); its columns are: lhs, rel, rhs, lhs"),
        (("LHS", "rel", "rhs", "lhs"), "no column 'lhs' (columns.lhs); its columns are: LHS, rel, rhs, lhs_1"),
        (("lhs", "rel", "rhs", "LHS"), None),
        (("lhs", "rel", "rhs", "ts", "ts"), None),
        (("lhs", "rel", "rhs", "lhs_1"), None),
    ],
)
def test_parquet_column_that_is_repeated_is_refused(tmp_path, names, fault):
    (tmp_path / "day").mkdir()
    columns = [pa.array([text]) for text in ("a", "likes", "b", "other", "other")[: len(names)]]
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "day" / "p.parquet")
    spec = make_spec(tmp_path, form="parquet")
    assert fault in refusal(spec, tmp_path) if fault else check(spec, tmp_path).edges == 1


def test_parquet_rows_are_numbered(tmp_path):
    table = pa.table({"lhs": ["a", None, "c"], "rel": ["likes"] * 3, "rhs": ["x", "y", "z"]})
    (tmp_path / "day").mkdir()
    pq.write_table(table, tmp_path / "day" / "p.parquet")
    assert "p.parquet, row 2: empty id in column lhs (1 such rows" in refusal(
        make_spec(tmp_path, form="parquet"), tmp_path
    )


@pytest.mark.parametrize(("column", "fault"), [("lhs", "empty id"), ("rhs", "empty id"), ("rel", "empty relation")])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_among_floats_is_missing(tmp_path, column, fault, kind):
    (tmp_path / "day").mkdir()
    numbers = {name: [1.5, 2.0, 3.0] for name in ("lhs", "rel", "rhs")}
    numbers[column][1] = float("nan")
    table = pa.table({name: pa.array(values, kind) for name, values in numbers.items()})
    pq.write_table(table, tmp_path / "day" / "p.parquet")
    model = TYPED | {"relations": [{"name": "any", "lhs": "user", "rhs": "item"}], "dynamic_relations": True}
    message = refusal(make_spec(tmp_path, form="parquet", model=model), tmp_path)
    assert f"p.parquet, row 2: {fault} in column {column}" in message


def test_numbers_are_read_as_names(tmp_path):
    (tmp_path / "day").mkdir()
    table = pa.table({"lhs": [1, 2], "rel": ["likes"] * 2, "rhs": [7, 8]})
    pq.write_table(table, tmp_path / "day" / "p.parquet")
    assert check(make_spec(tmp_path, form="parquet"), tmp_path).edges == 2
