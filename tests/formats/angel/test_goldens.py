"""Samples that real Angel wrote, and handwritten cases of the same form.

The samples are used where they are available.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.formats.angel import RowType
from tests.angel_goldens import EXACT, REFUSED, WRONG, main, outcomes, unpacked
from tests.formats.angel.samples import FORMATS, NUMERIC, PACKAGE, number, save_blocks

SAMPLES = Path(__file__).parents[4] / "shared/data/angel-goldens/goldens.tar.xz"


@pytest.fixture(scope="module")
def goldens():
    if not SAMPLES.exists():
        pytest.skip("the samples that Angel wrote are not beside this checkout")
    with unpacked(SAMPLES.parent) as folder:
        yield folder


def test_samples_are_read_and_written_as_by_angel(goldens, capsys):
    found = {name: outcome for name, outcome, _ in outcomes(goldens)}
    assert set(found.values()) == {EXACT, REFUSED}
    assert {name for name, outcome in found.items() if outcome == REFUSED} == {
        "A_RowIdColIdValueTextRowFormat_T_DOUBLE_DENSE",
        *(f"A_Value{form}RowFormat_T_FLOAT_SPARSE{keys}" for form in ("Binary", "Text") for keys in ("", "_LONGKEY")),
        *(f"C_emb_{form}ColumnFormat_hash_{keys}" for form in ("Binary", "Text") for keys in ("int", "longkey")),
    }
    assert main(goldens) == 0
    assert "39 exact, 9 refused-as-documented, 0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    "suffix", ["_BinaryColumnFormat_T_FLOAT_DENSE", "_RowIdColIdValueTextRowFormat_T_FLOAT_SPARSE"]
)
def test_a_changed_sample_is_wrong(goldens, suffix):
    data = goldens / f"goldens/A{suffix}/model/m/0"
    before = data.read_bytes()
    try:
        data.write_bytes(before.replace(b"1", b"2") if b"1" in before else before[:-1] + b"\x01")
        assert [outcome for name, outcome, _ in outcomes(goldens) if name == f"A{suffix}"] == [WRONG]
        assert main(goldens / "goldens" / f"A{suffix}") == 1
    finally:
        data.write_bytes(before)


def test_any_changed_byte_of_line_sample_is_wrong(goldens):
    found = {}
    for path in sorted((goldens / "goldens_line").iterdir()):
        before = path.read_bytes()
        try:
            for place, byte in enumerate(before):
                path.write_bytes(before[:place] + (b"5" if byte != ord("5") else b"6") + before[place + 1 :])
                [outcome] = [outcome for name, outcome, _ in outcomes(path.parent) if name == path.name]
                found[path.name, place] = outcome
        finally:
            path.write_bytes(before)
    assert len(found) > 100
    assert not [place for place, outcome in found.items() if outcome != WRONG]


def line(folder, name, vectors, given=None, after=":", between=" "):
    """Write text of LINE and the vectors it was made from."""
    folder.mkdir(exist_ok=True)
    lines = (f"{node}{after}{between.join(map(str, vector))}\n" for node, vector in vectors.items())
    (folder / name).write_text("".join(lines))
    rows = (f"{node}\t{place}\t{v}\n" for node, vector in (given or vectors).items() for place, v in enumerate(vector))
    source = "line_context_input.tsv" if name.endswith(".context") else "line_input.tsv"
    (folder / source).write_text("".join(rows))


VECTORS = {7: (0.5, -0.0), 3: (1.0e-5, 2.0)}


@pytest.mark.parametrize("name", ["line_colon_space_hash.txt", "line_colon_space_hash.txt.context"])
def test_line_text_is_compared_with_its_input(tmp_path, name):
    near = np.nextafter(np.float32(0.5), np.float32(1))
    for index, (given, outcome) in enumerate(
        [
            (None, EXACT),
            ({7: (float(near), -0.0), 3: (1.0e-5, 2.0)}, WRONG),
            ({7: (0.5, 0.0), 3: (1.0e-5, 2.0)}, WRONG),
            ({7: (0.5, -0.0)}, WRONG),
            ({7: (0.5, -0.0), 3: (1.0e-5, 2.0), 4: (1.0, 1.0)}, WRONG),
            ({7: (0.5,), 3: (1.0e-5,)}, WRONG),
        ]
    ):
        texts = {7: ("0.5", "-0.0"), 3: ("1.0E-5", "2.0")}
        line(tmp_path / str(index), name, texts, given or VECTORS)
        assert [found for _, found, _ in outcomes(tmp_path / str(index))] == [outcome], given


def test_no_sample_at_all_is_a_failure(tmp_path):
    assert main(tmp_path) == 1


def case(folder, form, kind, rows, bounds, *, separator=",", per_file=1, **facts):
    """Write a case in the form of the samples, by hand.

    It uses no code of the package except a float's digits.
    """
    folder.mkdir(parents=True)
    save_blocks(folder / "model" / "m", form, kind, rows, bounds, separator=separator, per_file=per_file)
    arguments = {"sep": separator, "parts_per_file": per_file}
    (folder / "case.json").write_text(json.dumps({"save_rc": 0, "args": arguments} | facts))
    lines = (
        f"{row}\t{column}\t{number(value, kind.value_type)}\n"
        for row, values in rows.items()
        for column, value in values.items()
    )
    (folder / "input.tsv").write_text("".join(lines))


def values_of(kind):
    """Return some awkward values of a type."""
    if kind.value_type.kind == "i":
        limits = np.iinfo(kind.value_type)
        return [limits.min, limits.max, 0, -1, 7, 10_000_000]
    limits = np.finfo(kind.value_type)
    return [np.nan, np.inf, -np.inf, -0.0, limits.smallest_subnormal, limits.max, 1e7, 0.001, 0.1, 1e-4]


def shapes(kind):
    """Yield name, rows and partition bounds of matrices of a row type."""
    values = [kind.value_type.type(value) for value in values_of(kind)]
    dense = {row: {c - 3: values[(row + c) % len(values)] for c in range(11)} for row in range(12)}
    if kind.dense:
        yield "one", {0: {0: values[0]}}, (0, 1)
        yield "cut", dense, (-3, 1, 5, 8)
        return
    far = 1 << 61 if kind.key_type.itemsize == 8 else (1 << 31) - 2
    yield "empty", {0: {}, 1: {}}, (0, 5)
    yield "empty-rows", {0: {1: values[0], 4: values[1]}, 1: {}, 2: {4: values[2]}}, (0, 3, 6)
    yield "full", dense, (-3, 1, 5, 8)
    yield "far", {0: {-far: values[0], far: values[1]}, 1: {-far: values[2]}}, (-far, 1, far + 1)


@pytest.mark.parametrize("form", FORMATS)
def test_handwritten_cases_are_rewritten_byte_for_byte(tmp_path, form):
    refused = set()
    for kind in NUMERIC:
        for name, rows, bounds in shapes(kind):
            separator = "\t" if kind.value_type.itemsize == 4 else ","
            case(tmp_path / f"{kind.name}-{name}", form, kind, rows, bounds, separator=separator)
            if not kind.dense and form.startswith("Value") and name in {"empty-rows", "far"}:
                refused.add(f"{kind.name}-{name}")
    found = {name: (outcome, note) for name, outcome, note in outcomes(tmp_path)}
    assert not [item for item in found.items() if item[1][0] == WRONG]
    assert {name for name, (outcome, _) in found.items() if outcome == REFUSED} == refused
    noted = {name: note for name, (outcome, note) in found.items() if outcome == EXACT and note}
    assert all(form.startswith("Value") and "_SPARSE" in name and "not written again" in noted[name] for name in noted)


@pytest.mark.parametrize("kind", [RowType.T_FLOAT_DENSE, RowType.T_DOUBLE_SPARSE])
@pytest.mark.parametrize("form", FORMATS)
def test_cases_of_several_partitions_a_file(tmp_path, form, kind):
    rows = {row: {column: row + column / 4 for column in range(9)} for row in range(2)}
    case(tmp_path / "two", form, kind, rows, (0, 2, 4, 6, 8, 9), per_file=5)
    assert [outcome for _, outcome, _ in outcomes(tmp_path)] == [EXACT]


def of_all_rows(meta):
    """Extend the partition to all three rows.

    Angel's partition covers all rows, whichever of them are saved.
    """
    meta |= {"row": 3, "blockRow": 3}
    meta["partMetas"]["0"] |= {"startRow": 0, "endRow": 3}


SAVED = [([0, 2], {0, 2}), ("0,2", {0, 2}), ("1-2", {1, 2}), (2, {0, 1}), (2, {2}), ("0-2", {0, 1, 2})]


@pytest.mark.parametrize(("named", "saved"), SAVED, ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_rows_that_were_not_saved_are_not_expected(tmp_path, form, named, saved):
    rows = {row: {column: 1 + row + column / 4 for column in range(5)} for row in range(3)}
    for name, change in (("right", 0.0), ("wrong", 1.0)):
        folder = tmp_path / name
        case(folder, form, RowType.T_FLOAT_DENSE, rows, (0, 5))
        shutil.rmtree(folder / "model")
        kept = {row: {column: value + change for column, value in rows[row].items()} for row in sorted(saved)}
        save_blocks(folder / "model" / "m", form, RowType.T_FLOAT_DENSE, kept, (0, 5), change=of_all_rows)
        (folder / "case.json").write_text(json.dumps({"save_rc": 0, "args": {"save_rows": named}}))
    found = {name: outcome for name, outcome, _ in outcomes(tmp_path)}
    assert found == {"right": EXACT, "wrong": WRONG}


def test_other_rows_than_requested_are_wrong(tmp_path):
    rows = {row: {0: 1.5} for row in range(2)}
    case(tmp_path / "one", "BinaryColumnFormat", RowType.T_FLOAT_DENSE, rows, (0, 1))
    (tmp_path / "one" / "case.json").write_text(json.dumps({"save_rc": 0, "args": {"save_rows": "0"}}))
    [(_, outcome, note)] = outcomes(tmp_path)
    assert (outcome, note) == (WRONG, "rows 0 were to be saved, and metadata has [0, 1]")


@pytest.mark.parametrize(("written", "outcome"), [(b"1.234568", REFUSED), (b"1.234567", WRONG)])
def test_values_beside_one_byte_values_are_compared(tmp_path, written, outcome):
    rows = {0: {0: np.inf, 1: 1.23456789, 2: np.nan, 3: -np.inf}}
    folder = tmp_path / "one"
    case(folder, "RowIdColIdValueTextRowFormat", RowType.T_DOUBLE_DENSE, rows, (0, 4), **{"load-ps_rc": 1})
    data = b"0,0,\x1e\n0,1,%b\n0,2,\xfd\n0,3,-\x1e\n" % written
    shutil.rmtree(folder / "model")
    save_blocks(
        folder / "model" / "m", "RowIdColIdValueTextRowFormat", RowType.T_DOUBLE_DENSE, rows, (0, 4),
        change=lambda meta: meta["partMetas"]["0"].update(length=len(data)),
    )  # fmt: skip
    (folder / "model" / "m" / "0").write_bytes(data)
    assert [found for _, found, _ in outcomes(tmp_path)] == [outcome]


def test_matrix_that_angel_cannot_save_may_be_refused(tmp_path):
    rows = {0: {0: 1.0, 1: 2.0}}
    whole = ("BinaryColumnFormat", RowType.T_FLOAT_DENSE, rows, (0, 1, 2))
    for name, change in (
        ("foreign", lambda meta: meta.update(formatClassName=f"{PACKAGE}SnapshotFormat")),
        ("gap", lambda meta: meta["partMetas"].update({"7": meta["partMetas"].pop("1") | {"partId": 7}})),
        ("angels-gap", lambda meta: meta["partMetas"].update({"7": meta["partMetas"].pop("1") | {"partId": 7}})),
    ):
        case(tmp_path / name, *whole)
        shutil.rmtree(tmp_path / name / "model")
        save_blocks(tmp_path / name / "model" / "m", *whole, change=change)
    (tmp_path / "gap" / "case.json").write_text('{"load-ps_rc": 0, "load-ps_roundtrip": "MISMATCH 1/2"}')
    (tmp_path / "unsaved").mkdir()
    (tmp_path / "unsaved" / "case.json").write_text('{"save_rc": 1}')
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "case.json").write_text('{"save_rc": 0}')
    assert {name: outcome for name, outcome, _ in outcomes(tmp_path)} == {
        "foreign": REFUSED, "gap": REFUSED, "unsaved": REFUSED, "angels-gap": WRONG, "lost": WRONG
    }  # fmt: skip


def test_matrix_that_angel_cannot_load_may_be_refused(tmp_path):
    rows = {0: {0: 1.0}}
    case(tmp_path / "torn", "BinaryColumnFormat", RowType.T_FLOAT_DENSE, rows, (0, 1), **{"load-ps_rc": 1})
    (tmp_path / "torn" / "model" / "m" / "_meta").write_bytes(b"\0\0\0\1{")
    case(tmp_path / "cut", "BinaryColumnFormat", RowType.T_FLOAT_DENSE, rows, (0, 1))
    (tmp_path / "cut" / "model" / "m" / "_meta").write_bytes(b"\0\0\0\1{")
    assert {name: outcome for name, outcome, _ in outcomes(tmp_path)} == {"torn": REFUSED, "cut": WRONG}
