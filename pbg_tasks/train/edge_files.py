"""The buckets of all edge paths as files, brought to the local disk when they are first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeList, count_edges, read_edges

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.train.schedule import Bucket


class BucketFiles(Protocol):
    """Finds the files."""

    def local(self, edge_path_idx: int, bucket: Bucket) -> Path | None:
        """Return the local file of a bucket; None when it has none because it is empty."""
        ...


class FiledEdges:
    """Edges read from bucket files.

    Args:
        files: finds them.
        counts: edges by edge path and bucket, where they are known without a look at the files.
    """

    def __init__(self, files: BucketFiles, counts: dict[tuple[int, Bucket], int] | None = None) -> None:
        self._files, self._counts = files, dict(counts or {})

    def count(self, edge_path_idx: int, bucket: Bucket) -> int:
        """Return how many edges a bucket holds."""
        key = (edge_path_idx, bucket)
        if key not in self._counts:
            path = self._files.local(*key)
            self._counts[key] = count_edges(path) if path is not None else 0
        return self._counts[key]

    def read(self, edge_path_idx: int, bucket: Bucket, start: int, stop: int) -> EdgeList:
        """Return edges ``start`` to ``stop`` of a bucket.

        Raises:
            FormatError: the file is damaged, or holds fewer edges than were counted.
        """
        path = self._files.local(edge_path_idx, bucket)
        if path is None:
            nothing = np.empty(0, np.int64)
            return EdgeList(nothing, nothing, nothing)
        edges = read_edges(path, start, stop)
        if len(edges) != stop - start:
            raise FormatError(f"{path}: holds {start + len(edges)} edges where {stop} or more were counted")
        return edges
