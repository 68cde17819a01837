"""The edge files of a run, downloaded one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import BucketResult, SplitEdges
from pbg_tasks.errors import QualityGateError
from pbg_tasks.formats.edges import count_edges, edge_file_name, read_edges
from pbg_tasks.tasks.files import open_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.tasks.context import RunContext

SPLITS = ("train", "valid", "test")


def require_held_out(run: RunContext, edges: SplitEdges, returned: int) -> None:
    """Refuse a night without held-out edges.

    The quality of its vectors could not be measured.

    Args:
        run: the night.
        edges: of its snapshot, by split.
        returned: pairs of entities that were drawn to be held out, and went back to training.

    Raises:
        QualityGateError: there is nothing to evaluate on.
    """
    split = run.spec.graph.eval.split
    if getattr(edges, split):
        return
    advice = f"raise split.{split}"
    if returned:
        advice = (
            f"{returned} pairs of entities were drawn to be held out, and went back to training because one of the two "
            f"would keep no other training edge, now or in an earlier night; a larger split.{split} helps only where "
            "entities have several edges"
        )
    raise QualityGateError(
        f"{run.url}: no {split} edges could be held out, so there is nothing to evaluate on: {advice}"
    )


class EdgeBuckets:
    """The buckets of a run.

    Args:
        run: whose edges.
        directory: local one for the bucket that is being read.
    """

    def __init__(self, run: RunContext, directory: Path) -> None:
        self._files, self._directory = open_directory(run, RunLayout.edges), directory
        matrix = run.need(BucketResult).matrix
        self._grid = [(lhs, rhs) for lhs in range(len(matrix)) for rhs in range(len(matrix[0]))]

    def of(self, *splits: str) -> Iterator[tuple[tuple[int, int], EdgeList]]:
        """Yield each bucket of some splits."""
        for bucket, path in self._fetched(splits):
            yield bucket, read_edges(path)

    def pieces(self, *splits: str, edges: int) -> Iterator[tuple[tuple[int, int], EdgeList]]:
        """Yield each bucket of some splits, at most ``edges`` at a time."""
        for bucket, path in self._fetched(splits):
            for start in range(0, max(count_edges(path), 1), edges):
                yield bucket, read_edges(path, start, start + edges)

    def _fetched(self, splits: Iterable[str]) -> Iterator[tuple[tuple[int, int], Path]]:
        for split in splits:
            for bucket in self._grid:
                path = self._files.fetch(f"{split}/{edge_file_name(*bucket)}", self._directory)
                yield bucket, path
                path.unlink()
