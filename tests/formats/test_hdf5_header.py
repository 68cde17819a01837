"""Facts of an edge file, read from a few parts of it."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeFacts, EdgeFileWriter, EdgeList, Features, edge_facts, write_edges
from pbg_tasks.formats.hdf5_header import PART, Hdf5Header, read_header

EDGES = 50_000
NAME = "s3://bucket/edges/edges_0_0.h5"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "edges_0_0.h5"


def edges(*, weighted=False, features=None):
    column = np.arange(EDGES)
    weight = np.ones(EDGES, np.float32) if weighted else None
    lhs = column if features is None else np.full(EDGES, -1)
    return EdgeList(lhs, column, column % 3, weight, lhs_features=features)


def seen(path):
    """Return facts read from a header and the number of parts."""
    data, fetched = path.read_bytes(), []

    def fetch(start, stop):
        fetched.append((start, stop))
        assert 0 <= start <= stop <= len(data)
        return data[start:stop]

    facts = read_header(NAME, len(data), fetch, edge_facts)
    assert len(set(fetched)) == len(fetched)
    return facts, len(fetched)


@pytest.mark.parametrize("weighted", [False, True])
def test_file_of_ours_needs_its_first_part_only(path, weighted):
    with EdgeFileWriter(path, EDGES, weighted=weighted) as writer:
        writer.append(edges(weighted=weighted))
    assert path.stat().st_size > 10 * PART
    assert seen(path) == (EdgeFacts(EDGES, weighted), 1)


def test_facts_further_on_are_fetched_too(path):
    features = Features(np.arange(EDGES + 1), np.arange(EDGES))
    write_edges(path, edges(weighted=True, features=features))
    facts, parts = seen(path)
    assert facts == EdgeFacts(EDGES, weighted=True) == edge_facts(path)
    assert parts <= 3
    with h5py.File(path, "w") as file:  # as PBG's importer: in chunks, one column after the other
        file.attrs["format_version"] = 1
        for name in ("lhs", "rel", "rhs"):
            file.create_dataset(name, (0,), "i8", maxshape=(None,), chunks=(EDGES // 2,))
        for size in (EDGES // 2, EDGES):
            for item in file.values():
                item.resize((size,))
                item[size - EDGES // 2 :] = 1
    facts, parts = seen(path)
    assert facts == EdgeFacts(EDGES, weighted=False)
    assert 1 < parts <= 6


def test_scattered_file_is_given_up(path):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for name in ("lhs", "rhs", "rel"):
            file.create_dataset(name, data=np.zeros(400_000, np.int64), chunks=(64,))
    assert seen(path)[0] is None


def test_damaged_file_is_named(path):
    write_edges(path, edges())
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:4],
        b"\0" * len(whole),
        whole[:600] + b"\0" * (len(whole) - 600),
        whole[: len(whole) // 2],
    ):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=rf"^{NAME}: "):
            seen(path)


def test_file_of_other_kind_is_named(path):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file["lhs"] = np.zeros(3)
        file["rel"] = np.zeros(3, np.int64)
    with pytest.raises(FormatError, match=rf"^{NAME}: dataset 'lhs' is of type float64"):
        seen(path)


def test_reading_absent_part_fails_and_is_noted():
    file = Hdf5Header("name", 3 * PART)
    file.parts[0] = b"x" * PART
    file.seek(PART - 2)
    assert file.read(2) == b"xx"
    file.seek(PART - 2)
    with pytest.raises(OSError, match="not here"):
        file.read(4)
    assert file.missing == {1}
    file.seek(0, 2)
    assert (file.tell(), file.read(1)) == (3 * PART, b"")
