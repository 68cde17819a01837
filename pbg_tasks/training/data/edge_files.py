"""Files of the buckets of all edge paths.

They are brought to the local disk when they are first needed, and read ahead of the training.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeList, count_edges, read_edges
from pbg_tasks.storage.staging import named
from pbg_tasks.training.data.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pbg_tasks.training.schedule import Bucket

_CHUNKS_AHEAD, _EDGES_AHEAD = 8, 1 << 16


class BucketFiles(Protocol):
    """Locator of the local files of buckets."""

    def local(self, edge_path_idx: int, bucket: Bucket) -> Path | None:
        """Return the local file of a bucket; None for an empty bucket.

        The file exists until the next one is requested.
        """
        ...


class EdgeFiles(Protocol):
    """Edges of the buckets of every edge path."""

    def count(self, edge_path_idx: int, bucket: Bucket) -> int:
        """Return the number of edges of a bucket."""
        ...

    def read(self, edge_path_idx: int, bucket: Bucket, start: int, stop: int) -> EdgeList:
        """Return edges ``start`` to ``stop`` of a bucket."""
        ...


class FiledEdges:
    """Edges read from bucket files.

    Args:
        files: finds them.
        counts: numbers of edges by edge path and bucket that are known without opening the files.
        where: name of the file of a bucket in messages; None: its local path.
    """

    def __init__(
        self,
        files: BucketFiles,
        counts: Mapping[tuple[int, Bucket], int] | None = None,
        where: Callable[[int, Bucket], str] | None = None,
    ) -> None:
        self._files, self._counts = files, dict(counts or {})
        self._where = where

    def count(self, edge_path_idx: int, bucket: Bucket) -> int:
        """Return the number of edges of a bucket."""
        key = (edge_path_idx, bucket)
        if key not in self._counts:
            path = self._files.local(*key)
            with self._named(path, *key):
                self._counts[key] = count_edges(path) if path is not None else 0
        return self._counts[key]

    def read(self, edge_path_idx: int, bucket: Bucket, start: int, stop: int) -> EdgeList:
        """Return edges ``start`` to ``stop`` of a bucket.

        Raises:
            FormatError: the file is damaged, or contains fewer edges than were counted.
        """
        path = self._files.local(edge_path_idx, bucket)
        if path is None:
            nothing = np.empty(0, np.int64)
            return EdgeList(nothing, nothing, nothing)
        with self._named(path, edge_path_idx, bucket):
            edges = read_edges(path, start, stop)
            if len(edges) != stop - start:
                raise FormatError(f"{path}: holds {start + len(edges)} edges where {stop} or more were counted")
        return edges

    def _named(self, path: Path | None, edge_path_idx: int, bucket: Bucket) -> AbstractContextManager[None]:
        return nullcontext() if path is None or self._where is None else named(path, self._where(edge_path_idx, bucket))


class LockedEdges:
    """Edges that one thread at a time reads, of several that do.

    Args:
        edges: whose files may be gone when the next is asked for.
    """

    def __init__(self, edges: EdgeFiles) -> None:
        self._edges, self._lock = edges, threading.Lock()

    def count(self, edge_path_idx: int, bucket: Bucket) -> int:
        """Return the number of edges of a bucket."""
        with self._lock:
            return self._edges.count(edge_path_idx, bucket)

    def read(self, edge_path_idx: int, bucket: Bucket, start: int, stop: int) -> EdgeList:
        """Return edges ``start`` to ``stop`` of a bucket."""
        with self._lock:
            return self._edges.read(edge_path_idx, bucket, start, stop)


class EdgeChunk(NamedTuple):
    """Edges ``start`` to ``stop`` of a bucket of an edge path."""

    edge_path_idx: int
    bucket: Bucket
    start: int
    stop: int

    @property
    def edges(self) -> int:
        """Number of edges."""
        return self.stop - self.start


class EdgesAhead:
    """Reader of the next bucket's edges while the present one is trained.

    Where buckets are small, it reads several ahead.

    An edge chunk that follows itself, as a single bucket does from epoch to epoch, stays in memory and is read once.

    Attributes:
        io: the thread that reads.
    """

    def __init__(self, edges: EdgeFiles) -> None:
        self.io = Background("edges")
        self._edges = edges
        self._coming: dict[EdgeChunk, Future[EdgeList]] = {}

    def ask(self, edge_chunk: EdgeChunk) -> None:
        """Begin to read an edge chunk's edges, which the caller takes next."""
        if edge_chunk not in self._coming:
            self._coming[edge_chunk] = self.io.submit(self._edges.read, *edge_chunk)

    def forget(self, edge_chunk: EdgeChunk) -> None:
        """Drop an edge chunk that was to be taken next."""
        if (coming := self._coming.pop(edge_chunk, None)) is not None:
            coming.cancel()

    def take(self, edge_chunk: EdgeChunk, upcoming: Iterable[EdgeChunk]) -> EdgeList:
        """Return an edge chunk's edges, and begin to read those of ``upcoming``.

        The caller must not change the edges, and takes the chunks of ``upcoming`` next.

        Raises:
            FormatError: the file of ``edge_chunk`` is damaged.
        """
        near = list(_near(upcoming))
        for each in (edge_chunk, *near):
            self.ask(each)
        follows_itself = near[:1] == [edge_chunk]
        return self.io.wait(self._coming[edge_chunk] if follows_itself else self._coming.pop(edge_chunk))


def _near(upcoming: Iterable[EdgeChunk]) -> Iterator[EdgeChunk]:
    """Yield the next edge chunk, and further ones up to two limits.

    Opening a small file takes longer than reading it, so several small chunks are read ahead.
    """
    edges = 0
    for edge_chunk in islice(upcoming, _CHUNKS_AHEAD):
        yield edge_chunk
        edges += edge_chunk.edges
        if edges >= _EDGES_AHEAD:
            return
