"""Edges read ahead of their training."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.training.data import edge_files
from pbg_tasks.training.data.edge_files import EdgeChunk, EdgesAhead
from pbg_tasks.training.schedule import Bucket

PIECES = [EdgeChunk(0, Bucket(0, number), 0, 10) for number in range(5)]


class Edges:
    """Edges that contain their bucket, and a record of reads.

    ``hold`` stops the reader until it is set.
    """

    def __init__(self):
        self.read_buckets: list[Bucket] = []
        self.hold = threading.Event()
        self.hold.set()

    def count(self, _edge_path_idx, _bucket):
        return 10

    def read(self, _edge_path_idx, bucket, start, stop):
        self.hold.wait()
        if bucket.rhs == 4:
            raise FormatError("edges_0_4.h5: damaged")
        self.read_buckets.append(bucket)
        column = np.full(stop - start, bucket.rhs)
        return EdgeList(column, column, column)


def rhs(edge_chunks):
    return [edge_chunk.bucket.rhs for edge_chunk in edge_chunks]


@pytest.mark.parametrize(("enough", "expected"), [(1, [0, 1]), (11, [0, 1, 2]), (20, [0, 1, 2]), (10**6, [0, 1, 2, 3])])
def test_next_edge_chunks_are_read_ahead(enough, expected, monkeypatch):
    monkeypatch.setattr(edge_files, "_EDGES_AHEAD", enough)
    edges = Edges()
    ahead = EdgesAhead(edges)
    with ahead.io:
        assert set(ahead.take(PIECES[0], PIECES[1:4]).lhs.tolist()) == {0}
        ahead.io.drain()
        assert [bucket.rhs for bucket in edges.read_buckets] == expected


def test_chunk_read_ahead_is_taken_without_waiting():
    edges = Edges()
    ahead = EdgesAhead(edges)
    with ahead.io:
        ahead.take(PIECES[0], PIECES[1:3])
        ahead.io.drain()
        edges.hold.clear()  # every later read would wait forever
        assert set(ahead.take(PIECES[1], PIECES[2:3]).lhs.tolist()) == {1}
        assert set(ahead.take(PIECES[2], []).lhs.tolist()) == {2}
        edges.hold.set()
    assert [bucket.rhs for bucket in edges.read_buckets] == [0, 1, 2]


def test_repeated_chunk_is_read_once_and_released():
    edges = Edges()
    ahead = EdgesAhead(edges)
    with ahead.io:
        first = ahead.take(PIECES[0], [PIECES[0]])
        assert ahead.take(PIECES[0], [PIECES[0]]) is first
        assert ahead.take(PIECES[0], []) is first
        released = weakref.ref(first.lhs)
        del first
        ahead.io.drain()
        assert released() is None
    assert len(edges.read_buckets) == 1


def test_only_a_few_chunks_are_read_ahead():
    edges = Edges()
    ahead = EdgesAhead(edges)
    empty = [EdgeChunk(0, Bucket(1, 0), start, start) for start in range(100)]
    with ahead.io:
        ahead.take(PIECES[0], empty)
        ahead.io.drain()
    assert len(edges.read_buckets) == 1 + edge_files._CHUNKS_AHEAD


def test_unreadable_chunk_is_named():
    ahead = EdgesAhead(Edges())
    with ahead.io:
        ahead.take(PIECES[3], PIECES[4:])
        with pytest.raises(FormatError, match=r"edges_0_4\.h5: damaged"):
            ahead.take(PIECES[4], [])
