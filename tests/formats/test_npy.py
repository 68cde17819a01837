"""Arrays on disk: new ones, and those of other programs."""

from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.formats.npy import map_array, new_array

ARRAY = np.arange(6, dtype=np.float64).reshape(2, 3)


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "v.npy", ARRAY)
    return tmp_path / "v.npy"


def test_an_array_is_mapped(path):
    found = map_array(path, "s3://bucket/v.npy")
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, ARRAY)


def test_new_array_takes_its_room_at_once(small_disk):
    with pytest.raises(ResourceError, match=r"rows\.npy: the disk or its quota is full"):
        new_array(small_disk / "rows.npy", (1 << 15, 64))
    array = new_array(small_disk / "rows.npy", (1 << 12, 64))
    assert (small_disk / "rows.npy").stat().st_blocks * 512 >= array.nbytes
    assert not array.any()
    assert new_array(small_disk / "none.npy", (0, 64)).shape == (0, 64)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(2, 3)", b"(2, 3-"),  # no end of a bracket
        (b"(2, 3)", b"(2-,3)"),
        (b"(2, 3)", b"({}: 1"),
        (b"(2, 3)", b"(9, 3)"),
        (b"(2, 3)", b"(-2,3)"),
        (b"{'descr': '<f8', ", b"{{}:1,           "),
        (b"<f8", b"|O8"),
        (b"'shape': (2, 3), }", b"'shape': (1<<99,)}"),
        (b"(2, 3), } ", b"(99999999" + b"9" * 30 + b",), }"),
        (b"NUMPY", b"numpy"),
    ],
)
def test_damaged_header_is_refused_by_name(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(FormatError, match=r"^s3://bucket/v\.npy: not a readable \.npy array \("):
        map_array(path, "s3://bucket/v.npy")


@pytest.mark.parametrize("length", [0, 7, 60, 150])
def test_truncated_file_is_refused_by_name(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FormatError, match=r"not a readable \.npy array .*truncated"):
        map_array(path, "v.npy")


def test_archive_of_arrays_is_refused(path):
    with path.open("wb") as file:
        np.savez(file, v=ARRAY)
    with pytest.raises(FormatError, match=r"^v\.npy: not a readable \.npy array \(the magic string"):
        map_array(path, "v.npy")


def test_no_object_is_unpickled(path):
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(FormatError, match="not a readable"):
        map_array(path, "v.npy")
