"""Iterations of a training, and the edge chunks of a bucket.

An iteration is one (epoch, edge path, edge chunk) and makes one checkpoint version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import Iteration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import ConfigSchema, ModelConfig
    from pbg_tasks.formats.metadata import IterationInfo


def iterations(config: ConfigSchema, chunks: int) -> Iterator[Iteration]:
    """Yield all iterations of a training, in order."""
    paths = len(config.edge_paths)
    number = 0
    for epoch in range(config.num_epochs):
        for path in range(paths):
            for chunk in range(chunks):
                number += 1
                yield Iteration(
                    number=number,
                    epoch_idx=epoch,
                    num_epochs=config.num_epochs,
                    edge_path_idx=path,
                    num_edge_paths=paths,
                    edge_chunk_idx=chunk,
                    num_edge_chunks=chunks,
                )


def ends_epoch(iteration: Iteration | IterationInfo) -> bool:
    """Return whether an iteration is the last of its epoch."""
    path, chunk = iteration.edge_path_idx, iteration.edge_chunk_idx
    return (path, chunk) == (iteration.num_edge_paths - 1, iteration.num_edge_chunks - 1)


def chunk_count(config: ModelConfig, largest_bucket: int) -> int:
    """Return ``num_edge_chunks``, or as many chunks as ``max_edges_per_chunk`` requires.

    Args:
        config: has one or the other.
        largest_bucket: number of its edges.
    """
    return config.num_edge_chunks or max(1, -(-largest_bucket // config.max_edges_per_chunk))


def chunk_bounds(edges: int, chunk: int, chunks: int) -> tuple[int, int]:
    """Return the slice of a bucket that is chunk ``chunk``.

    Chunks differ by one edge at most, and some may be empty.
    """
    return edges * chunk // chunks, edges * (chunk + 1) // chunks
