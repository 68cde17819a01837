"""Metadata: typed objects, equal bytes, and refusals."""

from __future__ import annotations

import json
import struct

import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel import RowType, parse_meta, serialize_meta
from tests.formats.angel.samples import save


@pytest.fixture
def data(tmp_path):
    rows = {row: {column: row + column / 2 for column in range(2)} for row in range(10, 20)}
    folder = save(tmp_path / "m", "TextColumnFormat", RowType.T_DOUBLE_DENSE, rows)
    return (folder / "_meta").read_bytes()


def test_objects_have_the_values_of_the_file(data):
    meta = parse_meta(data, "_meta")
    assert (meta.matrix_name, meta.row_type, meta.row, meta.col) == ("m", 0, 10, 2)
    assert meta.format_class_name == "com.tencent.angel.model.output.format.TextColumnFormat"
    assert dict(meta.options) == {"feature.index.range.end": "2", "feature.index.range.start": "0"}
    part = meta.part_metas[0]
    assert (part.start_row, part.end_row, part.save_col_num, part.save_col_elem_num) == (10, 20, 2, 10)
    assert part.row_ids == list(range(10, 20))
    assert part.row_metas[17].element_num == 2
    assert not meta.hashed


def test_rows_in_any_order_give_equal_bytes(data):
    meta = json.loads(data[4:])
    part = meta["partMetas"]["0"]
    hash_order = [*range(16, 20), *range(10, 16)]  # as java.util.HashMap orders 10 to 19
    part["rowMetas"] = {str(row): part["rowMetas"][str(row)] for row in hash_order}
    text = json.dumps(meta, separators=(",", ":")).encode()
    other = struct.pack(">i", len(text)) + text
    assert list(parse_meta(other, "_meta").part_metas[0].row_metas) == hash_order
    for kept in (data, other):
        assert serialize_meta(parse_meta(kept, "_meta")) == kept


def test_spaces_further_keys_and_numeric_options_are_accepted(data):
    meta = json.loads(data[4:]) | {"further": [1, {}]}
    meta["options"]["number"] = 5
    parsed = parse_meta(json.dumps(meta, indent=2).encode(), "meta")
    assert parsed.options["number"] == "5"
    assert parsed.part_metas == parse_meta(data, "meta").part_metas


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "0 bytes, too short"),
        (lambda data: data[:-1], r"says \d+ bytes of JSON and holds \d+: truncated"),
        (lambda data: data + b" ", r"says \d+ bytes of JSON and holds"),
        (lambda data: b"\x7f\xff\xff\xff" + data[4:], "says 2147483647 bytes of JSON"),
        (lambda data: data[:4] + b"[" * (len(data) - 4), "not the JSON of Angel's matrix metadata"),
        (lambda data: data.replace(b'"nnz"', b'"mmz"'), r"partMetas\.0: the key 'nnz' is missing"),
        (
            lambda data: data.replace(b'"saveType":0}}', b'"saveTypo":0}}'),
            r"rowMetas\.19: the key 'saveType' is missing",
        ),
        (lambda data: data.replace(b'"options"', b'"0ptions"'), "the key 'options' is missing"),
        (lambda data: data.replace(b'"partId":0', b'"partId":x'), "not the JSON"),
        (
            lambda data: data.replace(b'"offset":0,', b'"offset":-', 1).replace(b'-"length"', b'-1,"length"'),
            "JSON|offset",
        ),
        (lambda data: data.replace(b'"fileName":"0"', b'"fileName":"/"'), "fileName '/' is no data file"),
        (lambda data: data.replace(b'"rowId":11', b'"rowId":12'), "row_id 12 occurs twice"),
        (lambda data: data.replace(b'"rowId":11', b'"rowId":99'), "row 99 has 2 elements or is none of"),
        (lambda data: data.replace(b'"endRow":20', b'"endRow":09'), "not the JSON"),
        (lambda data: data.replace(b'"endRow":20', b'"endRow": 9'), "end before they start"),
        (lambda data: data.replace(b'"elementNum":2', b'"elementNum":""'), "says|expected int"),
        (lambda data: data.replace(b'"row":10', b'"row":1.'), "not the JSON"),
        (lambda data: data.replace(b'"matrixName":"m"', b'"matrixName":\xff\xfem'), "not the JSON"),
    ],
)
def test_damaged_metadata_is_refused_by_name(data, change, message):
    with pytest.raises(FormatError, match=f"^_meta.*(?:{message})"):
        parse_meta(change(data), "_meta")


@pytest.mark.parametrize("name", ["../0", "a/b", ".0.crc", "_meta", "", "\\0", "a\0"])
def test_no_file_outside_the_folder_is_named(data, name):
    meta = json.loads(data[4:])
    meta["partMetas"]["0"]["fileName"] = name
    with pytest.raises(FormatError, match="is no data file of the matrix's folder"):
        parse_meta(json.dumps(meta).encode(), "_meta")


@pytest.mark.parametrize(
    ("key", "value"), [("row", 1 << 31), ("col", 1 << 63), ("row", True), ("row", 2.0), ("row", "2")]
)
def test_numbers_beyond_their_type_are_refused(data, key, value):
    with pytest.raises(FormatError, match=f"'{key}' is .*, expected (int|long)"):
        parse_meta(json.dumps(json.loads(data[4:]) | {key: value}).encode(), "_meta")
