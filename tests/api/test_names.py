from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.api.names import NameIndex, UnknownNameError


def test_numbers_over_all_partitions_lead_to_names():
    index = NameIndex.of("entity", [["a", "b"], [], ["ä", "", "e" * 5000]])
    assert len(index) == 5
    np.testing.assert_array_equal(index.numbers(["e" * 5000, "a", "", "a"]), [4, 0, 3, 0])
    np.testing.assert_array_equal(index.find(["x", "b", "\ud800"]), [-1, 1, -1])
    assert index.names(np.array([2, 0])) == ["ä", "a"]
    assert "b" in index
    assert "c" not in index
    assert index.find([]).shape == (0,)
    assert NameIndex.of("entity", []).find(["a"]).tolist() == [-1]


def test_names_with_equal_hashes_are_distinguished(monkeypatch):
    monkeypatch.setattr(
        "pbg_tasks.formats.name_index.buckets", lambda names, _: np.array([len(name) for name in names], np.int64)
    )
    index = NameIndex.of("entity", [["ab", "cd", "x"], ["ef", "cd"]])
    np.testing.assert_array_equal(index.find(["ef", "cd", "ab", "x", "zz", "y"]), [3, 1, 0, 2, -1, -1])


@pytest.mark.parametrize("count", [100, 20_000])
def test_nearest_names_are_suggested(count):
    index = NameIndex.of("entity of type 'n'", [[f"Item_{i:06d}" for i in range(count)]])
    assert index.near("item_000042")[0] == "Item_000042"
    with pytest.raises(UnknownNameError, match=r"no entity of type 'n' is named 'Item_000O42'; did you mean 'Item_0"):
        index.numbers(["Item_000001", "Item_000O42"])
    for strange in ("???", "\ud800?", "?\udfff"):
        with pytest.raises(UnknownNameError, match=f"there are {count} names"):
            index.numbers([strange])
