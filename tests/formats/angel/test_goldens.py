"""What real Angel wrote, where the samples are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.angel_goldens import EXACT, REFUSED, WRONG, main, outcomes, unpacked

SAMPLES = Path(__file__).parents[4] / "shared/data/angel-goldens/goldens.tar.xz"


@pytest.fixture(scope="module")
def goldens():
    if not SAMPLES.exists():
        pytest.skip("the samples that Angel wrote are not beside this checkout")
    with unpacked(SAMPLES.parent) as folder:
        yield folder


def test_every_sample_is_read_and_written_as_angel_does(goldens, capsys):
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
def test_a_changed_sample_is_wrong(goldens, suffix, capsys):
    data = goldens / f"goldens/A{suffix}/model/m/0"
    before = data.read_bytes()
    try:
        data.write_bytes(before.replace(b"1", b"2") if b"1" in before else before[:-1] + b"\x01")
        assert [outcome for name, outcome, _ in outcomes(goldens) if name == f"A{suffix}"] == [WRONG]
        assert main(goldens / "goldens" / f"A{suffix}") == 1
    finally:
        data.write_bytes(before)


def test_no_sample_at_all_is_a_failure(tmp_path, capsys):
    assert main(tmp_path) == 1
