"""Large datasets, written and read in slices.

The bytes are the same as without slices, and other threads get their turn between two of them.
"""

from __future__ import annotations

import threading

import h5py
import numpy as np
import pytest

from pbg_tasks.formats import slices
from pbg_tasks.formats.edges import EdgeList, Features, read_edges, write_edges
from pbg_tasks.formats.embeddings import iter_blocks, read_embeddings, read_sums, write_embeddings

ROWS, COLUMNS = 700, 4


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(slices, "_SLICE_BYTES", 1000)


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture
def write(tmp_path, config, iteration, rows):
    def write(name, sums):
        path = tmp_path / name
        write_embeddings(path, rows, sums, lr=0.1, iteration=iteration, config=config)
        return path

    return write


@pytest.fixture
def edges():
    columns = np.random.default_rng(1).integers(0, 99, size=(2, ROWS))
    features = Features(np.arange(ROWS + 1) * 2, np.arange(2 * ROWS))
    weight = np.arange(ROWS, dtype=np.float32)
    return EdgeList(np.full(ROWS, -1), *columns, weight, lhs_features=features)


def test_a_slice_is_some_tens_of_megabytes():
    assert 16 << 20 <= slices._SLICE_BYTES <= 128 << 20


@pytest.mark.parametrize("with_sums", [False, True])
def test_sliced_file_has_the_bytes_of_one_call(write, rows, with_sums, monkeypatch):
    sums = rows[:, 0] ** 2 if with_sums else None
    whole = write("whole.h5", sums).read_bytes()
    turns = []
    monkeypatch.setattr(slices, "_SLICE_BYTES", 1000)
    monkeypatch.setattr(slices, "let_others", lambda: turns.append(None))
    sliced = write("sliced.h5", sums)
    assert len(turns) >= rows.nbytes // 1000
    assert sliced.read_bytes() == whole


@pytest.mark.usefixtures("small_slices")
def test_file_written_in_slices_is_read_in_slices(write, rows):
    path = write("embeddings.h5", rows[:, 0] ** 2)
    read, sums = read_embeddings(path)
    np.testing.assert_array_equal(read, rows)
    np.testing.assert_array_equal(sums, rows[:, 0] ** 2)
    np.testing.assert_array_equal(read_sums(path), sums)
    np.testing.assert_array_equal(np.concatenate([block for _, block in iter_blocks(path, 101)]), rows)


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8"])
@pytest.mark.parametrize("options", [{}, {"chunks": (23, 3)}, {"chunks": (500, 4), "compression": "gzip"}])
@pytest.mark.usefixtures("small_slices")
def test_any_layout_is_read_in_slices(tmp_path, rows, dtype, options):
    path = tmp_path / "embeddings.h5"
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset("embeddings", data=rows.astype(dtype), **options)
    np.testing.assert_array_equal(read_embeddings(path)[0], rows)
    np.testing.assert_array_equal(np.concatenate([block for _, block in iter_blocks(path, 310)]), rows)


def test_no_chunk_is_read_twice(tmp_path, rows, small_slices):
    with h5py.File(tmp_path / "chunked.h5", "w") as file:
        item = file.create_dataset("rows", data=rows, chunks=(64, COLUMNS))  # a slice of 1000 bytes has 62 rows
        cuts = list(slices._slices(item, 100, 300))
    assert cuts == [(100, 128), (128, 192), (192, 256), (256, 300)]


@pytest.mark.usefixtures("small_slices")
def test_edges_are_read_in_slices(tmp_path, edges):
    path = tmp_path / "edges_0_0.h5"
    write_edges(path, edges)
    for start, stop in ((0, None), (13, 650), (650, 9999), (ROWS, ROWS + 5)):
        read, wanted = read_edges(path, start, stop), edges.select(np.arange(ROWS)[start:stop])
        for name in ("lhs", "rhs", "rel", "weight"):
            np.testing.assert_array_equal(getattr(read, name), getattr(wanted, name))
        np.testing.assert_array_equal(read.lhs_features.data, wanted.lhs_features.data)
        np.testing.assert_array_equal(read.lhs_features.offsets, wanted.lhs_features.offsets)


@pytest.mark.usefixtures("small_slices")
def test_edges_are_read_between_slices_of_partition(tmp_path, write, rows, edges, monkeypatch):
    """Read edges in another thread while a partition is written.

    The next bucket's edges are read so: a thread that waits for h5py's lock gets it between two slices.
    """
    other = tmp_path / "edges_0_0.h5"
    write_edges(other, edges)
    came = []

    def wait_for_a_reader():
        if came:
            return
        came.append(None)  # the reader writes no slices, but its own turns count too
        reader = threading.Thread(target=lambda: came.append(read_edges(other)), daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive()

    monkeypatch.setattr(slices, "let_others", wait_for_a_reader)
    path = write("embeddings.h5", None)
    assert len(came) == 2
    np.testing.assert_array_equal(came.pop().rhs, edges.rhs)
    came.clear()
    np.testing.assert_array_equal(read_embeddings(path)[0], rows)
    assert len(came) == 2
