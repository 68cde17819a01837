"""Imports: vectors of other tools as a start of training.

They get the right names.

Longer than other files: every format goes through the same sources, names and mishaps.
"""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError, NotFoundError
from pbg_tasks.formats.angel import MatrixLayout, RowType, write_line, write_mapping, write_matrix
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.publish.exchange import READERS, ReadOptions
from pbg_tasks.publish.exchange.manifest import MANIFEST
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.export_parts import export_part, merge_parts
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from pbg_tasks.tasks.training.train import train_directory
from tests.directories import DataSet
from tests.tasks.exchanges import files, imported, model

OURS = [name for name in READERS if name != "wikidata-pbg"]
VECTORS = np.array([[0.1, -2, 3e-9], [4, 5, 1e30], [7, 8, 9]], np.float32)
NAMES = ["a b", 'c"', "日本"]


@pytest.fixture
def place(tmp_path, scratch):
    return tmp_path


def take(exchange, source, place, entity="n", **options):
    """Import and return names and vectors."""
    result = import_embeddings(exchange, str(source), str(place / "init"), options=ReadOptions(entity, **options))
    assert files(place / "init") == sorted([MANIFEST, f"{entity}.json", f"{entity}.npy"])
    names, vectors = imported(place / "init", entity)
    assert result["types"] == {entity: {"rows": len(names), "dimension": vectors.shape[1]}}
    return names, vectors


def same(found, names=NAMES, vectors=VECTORS):
    assert found[0] == names
    np.testing.assert_array_equal(found[1], vectors)


@pytest.mark.parametrize("exchange", OURS)
def test_own_exports_return_with_their_types(place, exchange):
    data = model(place / "data")
    escape = {"escape": True} if exchange == "word2vec" else {}
    types = ("user",) if exchange == "tsv" else ()  # its text does not contain types
    options = ExportOptions(types=types, **escape)
    export(exchange, str(data.checkpoint), str(place / "out"), options=options)
    import_embeddings(exchange, str(place / "out"), str(place / "init"))
    for entity in types or ("user", "item"):
        names, vectors = imported(place / "init", entity)
        assert names == data.names[entity]
        np.testing.assert_allclose(vectors, data.vectors[entity], atol=6e-10 if exchange == "tsv" else 0, rtol=0)


@pytest.mark.parametrize(
    ("exchange", "option"),
    [("npy", "id_column"), ("tsv", "vector_column"), ("word2vec", "feature_separator"), ("angel", "key_separator")],
)
def test_option_of_another_format_is_refused(place, exchange, option):
    with pytest.raises(ConfigError, match=f"format {exchange} has no option '{option}'"):
        import_embeddings(exchange, "nowhere", str(place / "init"), options=ReadOptions(**{option: "tab"}))


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("exchange", ["parquet", "npy", "tsv"])
def test_partition_without_entities_is_passed_over(place, exchange, partition):
    data = model(place / "data")
    gone = [name for name in data.names["user"] if name.startswith(f"user{partition}_")]
    expired = EntitySet({"user": np.full(len(gone), partition)}, {"user": np.arange(len(gone))})
    (data.root / "entities" / EXPIRED).write_bytes(expired.to_bytes())
    export_part(exchange, str(data.checkpoint), str(place / "out"), "1/1")
    merge_parts(exchange, str(data.checkpoint), str(place / "out"), 1)
    import_embeddings(exchange, str(place / "out"), str(place / "init"))
    names, _ = imported(place / "init", "user")
    assert names == [name for name in data.names["user"] if name not in gone]


@pytest.mark.parametrize("exchange", ["parquet", "npy"])
def test_one_type_can_be_chosen(place, exchange):
    data = model(place / "data")
    export(exchange, str(data.checkpoint), str(place / "out"), options=ExportOptions())
    assert take(exchange, place / "out", place, "item")[0] == data.names["item"]
    with pytest.raises(ConfigError, match="holds vectors of item, user, none of 'thing'"):
        import_embeddings(exchange, str(place / "out"), str(place / "more"), options=ReadOptions("thing"))


def test_training_starts_from_an_import_by_name(place):
    """Use names in other partitions and another order; some are missing."""
    data = DataSet(place)
    first = data.config(num_epochs=1)
    train_directory(first)
    before = dict(zip([f"e{p}_{i}" for p in range(2) for i in range(30)], data.embeddings(first, 1), strict=True))
    names = sorted(before)[5:]
    (place / "v.txt").write_text(
        f"{len(names)} 8\n" + "".join(f"{name} {' '.join(map(str, before[name]))}\n" for name in names)
    )
    import_embeddings("word2vec", str(place / "v.txt"), str(place / "init"), options=ReadOptions("n"))
    second = data.config("second", num_epochs=1, lr=0.0, init_path=str(place / "init"))
    train_directory(second)
    after = dict(zip(before, data.embeddings(second, 1), strict=True))
    for name in names:
        np.testing.assert_array_equal(after[name], before[name])


def test_npy_export_is_a_valid_init_path(place):
    data = DataSet(place)
    first = data.config(num_epochs=1)
    train_directory(first)
    export("npy", first, str(place / "init"))
    second = data.config("second", num_epochs=1, lr=0.0, init_path=str(place / "init"))
    train_directory(second)
    np.testing.assert_array_equal(data.embeddings(second, 1), data.embeddings(first, 1))


def test_existing_files_are_kept(place):
    np.save(place / "n.npy", VECTORS)
    (place / "n.json").write_text(json.dumps(NAMES))
    take("npy", place / "n.npy", place)
    with pytest.raises(ConflictError, match="is not empty"):
        import_embeddings("npy", str(place / "n.npy"), str(place / "init"), options=ReadOptions("n"))
    import_embeddings("npy", str(place / "n.npy"), str(place / "init"), options=ReadOptions("m"), overwrite=True)
    assert files(place / "init") == [MANIFEST, "m.json", "m.npy"]


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f2", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_float_type_are_read(place, dtype, order):
    vectors = np.array([[0.5, -2, 3], [4, 5, 6], [7, 8, 9]], dtype, order=order)
    np.save(place / "v.npy", vectors)
    (place / "ids.txt").write_text("\r\n".join(NAMES) + "\r\n", encoding="utf-8-sig" if order == "F" else "utf-8")
    same(take("npy", place / "v.npy", place), vectors=vectors.astype(np.float32))


def test_names_may_be_numbers(place):
    (place / "in").mkdir()
    np.save(place / "in" / "v.npy", VECTORS)
    np.save(place / "in" / "ids.npy", np.array([2**64 - 1, 0, 7], np.uint64))
    same(take("npy", place / "in", place), ["18446744073709551615", "0", "7"])


def test_array_left_out_is_reported(place, capsys):
    (place / "in").mkdir()
    for stem in ("n", "m"):
        np.save(place / "in" / f"{stem}.npy", VECTORS)
    np.save(place / "in" / "ids.npy", np.arange(3))
    (place / "in" / "n.json").write_text(json.dumps(NAMES))
    found = import_embeddings("npy", str(place / "in"), str(place / "init"))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "is left out" in line]
    assert (list(found["types"]), len(warnings)) == (["n"], 1)
    assert "m.npy is left out, as there is no m.json" in warnings[0]


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("empty", [[0], [1], [0, 1], [0, 2]])
def test_empty_files_of_spark_are_passed_over(place, empty):
    kind = pa.list_(pa.float32())
    (place / "in").mkdir()
    for part in range(len(empty) + 1):
        rows = slice(0, 0) if part in empty else slice(None)
        columns = {"id": pa.array(NAMES[rows], pa.string()), "embedding": pa.array(VECTORS.tolist()[rows], kind)}
        parquet(place / "in" / f"part-{part}.parquet", **columns)
    same(take("parquet", place / "in", place))


def test_repeated_columns_are_refused(place):
    columns = [pa.array(NAMES), pa.array(NAMES), pa.array(VECTORS.tolist())]
    pq.write_table(pa.Table.from_arrays(columns, ["id", "id", "embedding"]), place / "v.parquet")
    with pytest.raises(FormatError, match=r"v\.parquet: .*exists 2 times"):
        take("parquet", place / "v.parquet", place)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 3)])
@pytest.mark.parametrize("column", ["id", "name"])
def test_parquet_of_others_is_read(place, kind, column):
    vectors = VECTORS.astype(np.float64 if "double" in str(kind) else np.float32).tolist()
    path = parquet(
        place / "v.parquet", **{column: pa.array(NAMES).dictionary_encode(), "embedding": pa.array(vectors, kind)}
    )
    same(take("parquet", path, place))


def test_parquet_columns_are_chosen_by_name(place):
    folder = place / "in"
    folder.mkdir()
    for part in range(3):
        parquet(folder / f"part-{part}.parquet", node=pa.array([2**63 + part], pa.uint64()), v=[VECTORS[part].tolist()])
    (folder / "_SUCCESS").touch()
    found = take("parquet", folder, place, id_column="node", vector_column="v")
    same(found, [str(2**63 + part) for part in range(3)])


@pytest.mark.parametrize("ending", ["\n", "\r\n", " \n"])
@pytest.mark.parametrize("suffix", ["txt", "vec.gz"])
def test_word2vec_of_others_is_read(place, ending, suffix):
    rows = [f"{name.replace(' ', '_')} {' '.join(map(str, row))}" for name, row in zip(NAMES, VECTORS, strict=True)]
    text = "".join(line + ending for line in ["3 3", *rows]).encode()
    path = place / f"v.{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    same(take("word2vec", path, place), ["a_b", 'c"', "日本"])


def test_word2vec_of_gensim_is_read(place):
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    vectors = gensim.KeyedVectors(3)
    vectors.add_vectors(["a", "b", "c"], VECTORS)
    vectors.save_word2vec_format(place / "v.txt")
    same(take("word2vec", place / "v.txt", place), ["a", "b", "c"])


@pytest.mark.parametrize(("exchange", "ending"), [("tsv", "tsv"), ("word2vec", "vec"), ("wikidata-pbg", "tsv")])
def test_compressed_texts_of_folders_are_read(place, exchange, ending):
    folder = place / "in"
    folder.mkdir()
    heads = {"tsv": "", "word2vec": "1 3\n", "wikidata-pbg": "1\t0\t3\n"}
    gap = " " if exchange == "word2vec" else "\t"
    for number, (packed, kind) in enumerate([("", None), (".bz2", "bz2"), (".gz", "gzip"), (".zst", "zstd")]):
        line = gap.join([f"e{number}", *map(str, VECTORS[0])])
        with pa.output_stream(folder / f"{number}.{ending}{packed}", compression=kind) as out:
            out.write(f"{heads[exchange]}{line}\n".encode())
    same(take(exchange, folder, place), [f"e{number}" for number in range(4)], VECTORS[[0, 0, 0, 0]])


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_published_wikidata_embeddings_are_read(place, suffix):
    names = ["<http://www.wikidata.org/entity/Q5>", '"two words"@en', "#1"]
    relations = ["<P31>", "<P31>_reverse_relation"]
    lines = ["3\t1\t3", *("\t".join([name, *map(str, VECTORS[i % 3])]) for i, name in enumerate([*names, *relations]))]
    text = "".join(f"{line}\n" for line in lines).encode()
    path = place / f"wikidata.{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    same(take("wikidata-pbg", path, place), names)
    path.write_bytes(gzip.compress(text[:60]) if suffix.endswith("gz") else b"9\t1\t3\n" + text[6:])
    with pytest.raises(FormatError, match=r"truncated|fields"):
        import_embeddings("wikidata-pbg", str(path), str(place / "more"), options=ReadOptions("n"))


WIKIDATA = ["<http://www.wikidata.org/entity/Q5>", '"two [\\"words\\"], \\u00fc"@en', "#1"]
RELATIONS = ["<P31>", "<P17>", "<P31>_reverse_relation", "<P17>_reverse_relation"]


def arrays(place, names=(*WIKIDATA, *RELATIONS), rows=None, ending=".gz"):
    """Write Wikidata's embeddings as an array with names."""
    pack = gzip.compress if ending else bytes
    table = np.arange(3 * (len(names) if rows is None else rows), dtype=np.float32).reshape(-1, 3)
    np.save(place / "plain.npy", table)
    (place / f"v1_names.json{ending}").write_bytes(pack(json.dumps(list(names)).encode()))
    (place / f"v1_vectors.npy{ending}").write_bytes(pack((place / "plain.npy").read_bytes()))
    return place / f"v1_vectors.npy{ending}", table


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize("relations", [RELATIONS, []])
def test_published_wikidata_arrays_are_read(place, ending, relations):
    path, table = arrays(place, [*WIKIDATA, *relations], ending=ending)
    same(take("wikidata-pbg", path, place), WIKIDATA, table[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 6}, "v1_vectors.npy.gz: has 6 rows and 7 names"),
        ({"rows": 8}, "v1_vectors.npy.gz: has 8 rows and 7 names"),
        ({"names": ["a", "b_reverse_relation"]}, "the last 1 names are reverse relations, but not of those before"),
        ({"names": ["a", "a"]}, "the name 'a' comes twice"),
    ],
)
def test_wikidata_arrays_that_do_not_fit_are_refused(place, options, message):
    path, _ = arrays(place, **options)
    with pytest.raises(FormatError, match=message):
        take("wikidata-pbg", path, place)


def test_damaged_wikidata_arrays_are_refused(place):
    path, _ = arrays(place)
    data, names = path.read_bytes(), place / "v1_names.json.gz"
    wrong_checksum, rest = data[:-8] + bytes(4) + data[-4:], data + gzip.compress(b"more")
    for damaged in (
        data[:-20],
        data[:-1],
        wrong_checksum,
        rest,
        b"no gzip",
        gzip.compress(gzip.decompress(data)[:-4]),
        gzip.compress(b"none"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"v1_vectors\.npy\.gz: .*truncated"):
            take("wikidata-pbg", path, place)
    path.write_bytes(data)
    names.write_bytes(names.read_bytes()[:-20])
    with pytest.raises(FormatError, match=r"v1_names\.json\.gz: .*truncated"):
        take("wikidata-pbg", path, place)
    names.unlink()
    with pytest.raises(InputError, match=r"no names beside it; put v1_names\.json\.gz there"):
        take("wikidata-pbg", path, place)


def blocks():
    yield np.arange(2), VECTORS[:2]
    yield np.arange(2, 3), VECTORS[2:]


def test_angel_matrices_of_others_are_read(place):
    write_matrix(place / "model", MatrixLayout(name="layer", rows=3, end_col=3, format="TextColumnFormat"), blocks())
    same(take("angel", place / "model" / "layer", place), ["0", "1", "2"])
    write_mapping(place / "model" / "mapping", [(2, NAMES[2]), (0, NAMES[0]), (1, NAMES[1])])
    import_embeddings("angel", str(place / "model"), str(place / "named"), options=ReadOptions("n"))
    same(imported(place / "named", "n"))


def test_angel_matrices_of_huge_ids_are_read(place):
    layout = MatrixLayout(
        name="layer", rows=3, end_col=2**62 + 3, start_col=2**62, row_type=RowType.T_DOUBLE_SPARSE_LONGKEY, block_col=10
    )
    vectors = VECTORS.astype(np.float64)
    write_matrix(place / "model", layout, [(np.arange(2**62, 2**62 + 3), vectors)])
    same(take("angel", place / "model", place), [str(2**62 + i) for i in range(3)])


def test_angel_line_takes_the_last_epoch(place):
    write_line(place / "out" / "CP_2" / "embedding", [(np.arange(3), VECTORS * 2)])
    write_line(place / "out" / "CP_10" / "embedding", blocks(), nodes_per_file=2)
    write_mapping(place / "out" / "mapping", enumerate(NAMES))
    same(take("angel-line", place / "out", place))
    import_embeddings(
        "angel-line", str(place / "out" / "CP_2" / "embedding"), str(place / "two"), options=ReadOptions("n")
    )
    same(imported(place / "two", "n"), ["0", "1", "2"], VECTORS * 2)


def test_angel_line_with_other_separators(place):
    write_line(place / "v", blocks(), key_separator="tab", feature_separator="comma")
    same(take("angel-line", place / "v", place, key_separator="tab", feature_separator="comma"), ["0", "1", "2"])


def test_entity_without_a_name_is_refused(place):
    write_line(place / "out" / "CP_1" / "embedding", blocks())
    write_mapping(place / "out" / "mapping", enumerate(NAMES[:2]))
    with pytest.raises(FormatError, match="mapping: entity 2 has no line in the mapping"):
        take("angel-line", place / "out", place)


def test_angel_matrix_without_metadata_is_refused(place):
    for name in ("n_embedding", "other_embedding"):
        write_matrix(place / "model", MatrixLayout(name=name, rows=3, end_col=3), blocks())
    (place / "model" / "other_embedding" / "_meta").unlink()
    with pytest.raises(FormatError, match="model/other_embedding: has no metadata; save"):
        take("angel", place / "model", place, None)


@pytest.mark.parametrize("left", ["mapping/n/_SUCCESS", "mapping/other/part-00000"])
def test_angel_mapping_without_files_is_refused(place, left):
    write_matrix(place / "model", MatrixLayout(name="n_embedding", rows=3, end_col=3), blocks())
    (place / "model" / left).parent.mkdir(parents=True)
    (place / "model" / left).write_text("0:ann\n")
    with pytest.raises(FormatError, match=r"mapping/n: no files part-\*, so no names of these .*; restore them, or"):
        take("angel", place / "model", place)


def test_repeated_mapping_line_needs_the_same_name(place):
    write_line(place / "out" / "CP_1" / "embedding", blocks())
    pairs = [(-(2**63), "far"), *enumerate(NAMES), (1, NAMES[1])]
    write_mapping(place / "out" / "mapping", pairs)
    same(take("angel-line", place / "out", place))
    with (place / "out" / "mapping" / "part-00001").open("w") as file:
        file.write("2:other\n")
    with pytest.raises(FormatError, match="mapping: entity 2 has two names, '日本' and 'other'"):
        import_embeddings("angel-line", str(place / "out"), str(place / "again"), options=ReadOptions("n"))


@pytest.mark.parametrize("cut", ["0", "mapping/part-00000"])
def test_cut_line_of_angel_is_reported(place, cut, capsys):
    (place / "in" / "mapping").mkdir(parents=True)
    for name, text in {"0": "0:1.5 2.5\n1:3.5 4.5\n", "mapping/part-00000": "0:ann\n1:bob\n"}.items():
        (place / "in" / name).write_text(text[:-3] if name == cut else text)
    take("angel-line", place / "in", place)
    said = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines() if "line break" in line]
    assert said == [f"{place}/in/{cut}: the last line has no line break; the file may have been cut off"]


BAD = {
    "npy-names": ("npy", {"v.npy": VECTORS, "v.json": b'["a", "b"]'}, r"v\.npy: has 3 rows, .*v\.json has 2 names"),
    "npy-no-names": ("npy", {"v.npy": VECTORS}, r"v\.npy: no names beside it; put one of v\.json, ids\.json"),
    "npy-json": ("npy", {"v.npy": VECTORS, "v.json": b'["a", 1, "c"]'}, r"v\.json: not a JSON list of strings"),
    "npy-utf8": ("npy", {"v.npy": VECTORS, "v.json": b'["a", "\xff", "c"]'}, r"v\.json: not UTF-8 \(byte 7\)"),
    "npy-truncated": ("npy", {"v.npy": b"\x93NUMPY\x01\x00v\x00", "v.json": b"[]"}, r"v\.npy: not a readable \.npy"),
    "npy-ints": ("npy", {"v.npy": np.eye(3, dtype=int), "v.json": b"[]"}, r"v\.npy: holds int64 of shape \(3, 3\)"),
    "npy-flat": ("npy", {"v.npy": VECTORS[0], "v.json": b"[]"}, r"v\.npy: holds float32 of shape \(3,\)"),
    "npy-pickle": ("npy", {"v.npy": np.array([{}], object), "v.json": b"[]"}, r"v\.npy: not a readable \.npy"),
    "npy-nan": ("npy", {"v.npy": VECTORS * np.nan, "v.json": b'["a", "b", "c"]'}, "the vector of 'a' is not finite"),
    "npy-double": ("npy", {"v.npy": np.full((1, 2), 1e39), "v.json": b'["a"]'}, "the vector of 'a' is not finite"),
    "npy-twice": ("npy", {"v.npy": VECTORS, "v.json": b'["a", "b", "a"]'}, "the name 'a' comes twice"),
    "w2v-header": ("word2vec", {"v.txt": b"a 1 2\n"}, r"v\.txt: its first line is not 'ROWS DIMENSION'"),
    "w2v-rows": ("word2vec", {"v.txt": b"3 2\na 1 2\n"}, r"v\.txt: holds 1 vectors, its header says 3"),
    "w2v-lies": ("word2vec", {"v.txt": b"3 999999\na 1 2\n"}, r"line 2: has 3 fields, a name and 999999 numbers"),
    "w2v-blank": ("word2vec", {"v.txt": b"2 2\na 1 2\nb c 3 4\n"}, r"v\.txt: line 3: has 4 fields"),
    "w2v-inf": ("word2vec", {"v.txt": b"2 2\na 1 2\nb 3 inf\n"}, "the vector of 'b' is not finite"),
    "w2v-bytes": ("word2vec", {"v.txt": b"2 2\na 1 2\nb\xe9 3 4\n"}, r"line 3: not UTF-8 \(byte 2\)"),
    "w2v-empty": ("word2vec", {"v.txt": b""}, r"v\.txt: its first line is not"),
    "tsv-twice": ("tsv", {"v.tsv": b"a\t1\nb\t2\na\t3\n"}, "the name 'a' comes twice"),
    "tsv-empty": ("tsv", {"v.tsv": b""}, r"v\.tsv: line 1: no name and numbers"),
    "parquet-torn": ("parquet", {"v.parquet": b"PAR1 and no more"}, r"v\.parquet: not a readable Parquet file"),
    "angel-none": ("angel", {"v.txt": b"1"}, "holds no embeddings of Angel's"),
    "line-text": ("angel-line", {"0": b"0:1 2\n1:3 x\n"}, "line 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_reported_and_leaves_nothing(place, case):
    exchange, contents, message = BAD[case]
    (place / "in").mkdir()
    for name, content in contents.items():
        if isinstance(content, bytes):
            (place / "in" / name).write_bytes(content)
        else:
            np.save(place / "in" / name, content, allow_pickle=True)
    with pytest.raises((FormatError, InputError), match=message):
        import_embeddings(exchange, str(place / "in"), str(place / "init"), options=ReadOptions("n"))
    assert not (place / "init").exists()
    assert not list((place / "scratch").iterdir())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embedding": [[1.0]]}, r"needs a column 'id' or 'name' of strings or whole numbers .* has embedding"),
        ({"id": [1.5], "embedding": [[1.0]]}, r"has id \(double\)"),
        ({"id": ["a"], "embedding": [1.0]}, "of lists of floats"),
        ({"id": ["a", "b"], "embedding": [[1.0, 2], [3.0]]}, "row 1 has 1 numbers, the first row has 2"),
        ({"id": ["a", "b"], "embedding": [[1.0], None]}, "row 1 has 0 numbers"),
        ({"id": ["a"], "embedding": pa.array([[]], pa.list_(pa.float32()))}, r"v\.parquet: row 0 has no numbers"),
        ({"id": ["a", None], "embedding": [[1.0], [2.0]]}, "row 1 has no name"),
        ({"id": ["a", "b"], "embedding": [[1.0], [None]]}, "the vector of 'b' is not finite"),
        ({"id": ["a"], "embedding": [[float("inf")]]}, "the vector of 'a' is not finite"),
    ],
)
def test_bad_parquet_is_reported(place, columns, message):
    path = parquet(place / "v.parquet", **columns)
    with pytest.raises(FormatError, match=message):
        take("parquet", path, place)


def test_parquet_with_invalid_utf8_is_reported(place):
    ids = pa.array([b"a", b"b\xff"]).view(pa.string())
    path = parquet(place / "v.parquet", id=ids, embedding=[[1.0], [2.0]])
    with pytest.raises(FormatError, match=r"v\.parquet: not a readable Parquet file \('utf-8' codec"):
        take("parquet", path, place)
    path = parquet(place / "v.parquet", id=["a"], embedding=[[1.0]])
    path.write_bytes(path.read_bytes().replace(b"embedding", b"embeddin\xff"))
    with pytest.raises(FormatError, match=r"v\.parquet: not a readable Parquet file"):
        take("parquet", path, place)


@pytest.mark.parametrize("name", ["", "a/b", "../../out", "/out", "a\\b", "a\n"])
def test_no_type_leads_out_of_the_folder(place, name):
    data = model(place / "data", sizes={"user": 4, "item": 20})
    export("npy", str(data.checkpoint), str(place / "in"))
    with pytest.raises(ConfigError, match="cannot name an entity type"):
        take("npy", place / "in" / "item.npy", place, entity=name)
    manifest = place / "in" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"item":', f"{json.dumps(name)}:"))
    with pytest.raises(FormatError, match="cannot name an entity type"):
        take("npy", place / "in", place, entity=None)
    assert sorted(path.name for path in place.iterdir()) == ["data", "in", "scratch"]


@pytest.mark.parametrize("exchange", ["angel", "angel-line"])
def test_two_files_of_one_type_are_refused(place, exchange):
    data = model(place / "data", sizes={"user": 4, "item": 20})
    for night in ("monday", "tuesday"):
        export(exchange, str(data.checkpoint), str(place / "in" / night))
    with pytest.raises(ConfigError, match=r"monday/.* and tuesday/.* both hold embeddings of '(item|user)'; name one"):
        take(exchange, place / "in", place, entity=None)
    take(exchange, place / "in" / "tuesday", place, entity="item")
    np.testing.assert_array_equal(imported(place / "init", "item")[1], data.vectors["item"])


def test_tsv_of_several_types_takes_given_type(place):
    data = model(place / "data", sizes={"user": 4, "item": 20})
    export("tsv", str(data.checkpoint), str(place / "in"))
    take("tsv", place / "in", place, entity="thing")
    assert imported(place / "init", "thing")[0] == [*data.names["user"], *data.names["item"]]


def test_unknown_type_has_to_be_given(place):
    (place / "v.txt").write_text("1 1\na 1\n")
    for source in (place / "v.txt", place):
        with pytest.raises(ConfigError, match="nothing here tells the entity type of the vectors; give --type"):
            import_embeddings("word2vec", str(source), str(place / "init"))
    with pytest.raises(InputError, match="nothing there to import"):
        import_embeddings("word2vec", str(place / "nowhere"), str(place / "init"))
    with pytest.raises(ConfigError, match="no exchange format is named 'faiss'; there are angel, "):
        import_embeddings("faiss", str(place / "v.txt"), str(place / "init"))


@pytest.mark.parametrize("exchange", ["npy", "parquet", "angel"])
def test_damaged_export_is_refused(place, exchange):
    data = model(place / "data")
    export(exchange, str(data.checkpoint), str(place / "out"))
    name = {"npy": "item.npy", "parquet": "item.parquet", "angel": "item_embedding/0"}[exchange]
    path = place / "out" / name
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=re.escape(f"{name}: not the bytes that {MANIFEST} recorded")):
        import_embeddings(exchange, str(place / "out"), str(place / "init"))
    path.unlink()
    with pytest.raises(NotFoundError, match="missing"):
        import_embeddings(exchange, str(place / "out"), str(place / "init"))


@pytest.mark.s3
@pytest.mark.parametrize("exchange", ["npy", "angel"])
def test_import_from_store_to_store(place, s3_bucket, exchange):
    data = model(place / "data")
    export(exchange, str(data.checkpoint), f"{s3_bucket}/out")
    import_embeddings(exchange, f"{s3_bucket}/out", f"{s3_bucket}/init")
    open_store(f"{s3_bucket}/init").fetch("user.npy", place / "user.npy")
    np.testing.assert_array_equal(np.load(place / "user.npy"), data.vectors["user"])
    assert not list((place / "scratch").iterdir())


@pytest.mark.s3
def test_errors_name_the_url(place, s3_bucket):
    open_store(s3_bucket).put_new("v.txt", b"2 2\na 1 2\nb 3 x\n")
    with pytest.raises(FormatError, match=re.escape(f"{s3_bucket}/v.txt: line 3: field 3 is 'x'")):
        import_embeddings("word2vec", f"{s3_bucket}/v.txt", str(place / "init"), options=ReadOptions("n"))


def test_command_imports(place):
    (place / "v.txt").write_text("1 2\na 1 2\n")
    done = CliRunner().invoke(
        app, ["import-embeddings", "word2vec", f"{place}/v.txt", f"{place}/init", "--type", "n", "--json"]
    )
    assert done.exit_code == 0
    assert json.loads(done.stdout)["types"] == {"n": {"rows": 1, "dimension": 2}}
