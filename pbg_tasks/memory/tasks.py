"""Forecasts of the tasks other than training.

A task takes as much as its budget allows, or less where there is less to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.comparators import is_product
from pbg_tasks.memory.forecast import Forecast, Line
from pbg_tasks.memory.machine import usable_cpus

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec, Resources

_DUCKDB_BASE = 130_000_000  # Python, DuckDB, Arrow, h5py
_ROW_GROUPS = 60_000_000  # pieces in Arrow and HDF5 on their way
# Bytes for any snapshot, and bytes for an edge: measured on 29 k to 3 M edges, 1 to 3 of them for each entity.
_PREPARATION = {"validate": (175_000_000, 75), "partition": (175_000_000, 50), "bucket": (230_000_000, 200)}
_INDEXING = 1_000_000_000  # ``prepare.name_index.BUDGET``
# Of an indexed name: in DuckDB, and in mapped files: 2 M names held 0.53 GB, 25 M held 1.8 GB.
_SORTED_BYTES, _MAPPED_BYTES = 150, 28
# As in ``evaluate.tables.Budget``.
_QUERY_ROWS, _BLOCK_SHARE = 5, 8
_BLOCK_ROWS, _ROWS_EACH = 4096, 4
_TILES = 13_000_000
_BLOCK_EDGES, _BLOCK_BYTES = 1 << 20, 100  # ``evaluate.evaluation``: numbered, looked up, counted
_KNOWN_BYTES = 16  # bytes of a known edge: both sides' questions and answers, int64
# Of a known edge: both sides' counts by relation and entity, two int64 each, and one side's being joined with more of
# them. It is an upper bound, because an entity that is in several edges of a relation is counted once.
_COUNTED_BYTES = 60
_EVALUATION_BASE = 145_000_000  # Python, and DuckDB, which names what moved
_TORCH = 180_000_000
_CUDA = 3_000_000_000  # of the host, with torch: assumed, as no evaluation on a GPU has been measured yet
_KEPT = 100_000_000  # by allocators and threads, of memory that was freed: measured on 0.1 M to 3 M edges
# Beside another model: samples for rotation and neighbours, DuckDB's buffers, and bytes an entity of what moved.
_COMPARISON, _MOVED_BYTES = 120_000_000, 60
_NUMBERED_BYTES = 10  # of an entity in a part: whether the other model knows it, and its number on the way to that


def preparation_forecast(resources: Resources) -> Forecast:
    """Forecast ``validate``, ``partition`` and ``bucket``, at most.

    With less to do they take less.
    """
    return Forecast.of(
        "preparation, at most",
        [
            Line("process", _DUCKDB_BASE),
            Line("DuckDB", int(resources.memory_gb * 1e9), ("resources.memory_gb",)),
            Line("pieces being read and written", _ROW_GROUPS),
        ],
    )


def preparation_peaks(resources: Resources, edges: int) -> dict[str, int]:
    """Return the rough peaks of the three tasks, within their limit.

    The limit is the peak of ``preparation_forecast``.

    Args:
        resources: of the graph.
        edges: of the snapshot.
    """
    limit = preparation_forecast(resources).peak
    return {task: min(limit, base + each * edges) for task, (base, each) in _PREPARATION.items()}


def indexing_peak(resources: Resources, names: int) -> int:
    """Return the rough peak of ``preserve`` where it indexes names.

    Args:
        resources: of the graph.
        names: of the types that get an index.
    """
    budget = min(int(resources.memory_gb * 1e9), _INDEXING)
    return _DUCKDB_BASE + _ROW_GROUPS + min(budget, names * _SORTED_BYTES) + names * _MAPPED_BYTES


def evaluation_forecast(
    graph: GraphSpec, *, asked: int, known: int, entities: int = 0, compared: bool = False, part: bool = False
) -> Forecast:
    """Forecast ``eval``: at most, for most nights ask fewer edges.

    A part counts no training edges and compares no vectors, but asks all edges.

    Args:
        graph: the spec.
        asked: edges that are ranked.
        known: edges that are filtered out.
        entities: of all types.
        compared: whether the release before is asked, and its vectors are compared.
        part: whether it is one part of an evaluation.
    """
    budget, row = int(graph.resources.memory_gb * 1e9), 4 * max(map(graph.model.entity_dimension, graph.model.entities))
    threads = graph.resources.threads or usable_cpus()
    moved = _NUMBERED_BYTES if part else _MOVED_BYTES
    blocks = threads * (_BLOCK_ROWS * _ROWS_EACH * row + _TILES)
    return Forecast.of(
        "each part of eval, at most" if part else "eval, at most",
        [
            Line("process", _EVALUATION_BASE + (0 if is_product(graph.model) else _TORCH)),
            Line("libraries of the GPU", 0 if graph.eval.device == "cpu" else _CUDA, ("eval.device",)),
            Line("what allocators keep", _KEPT),
            Line("queries", min(asked * _QUERY_ROWS * row, budget // 2), ("resources.memory_gb",)),
            Line("candidates and scores", min(blocks, budget // _BLOCK_SHARE), ("resources.memory_gb",)),
            Line("pieces of known edges", min(known, _BLOCK_EDGES) * _BLOCK_BYTES),
            Line("known edges", known * _KNOWN_BYTES),
            Line("how often entities are seen", 0 if part else known * _COUNTED_BYTES),
            Line("comparison with the release before", compared * (_COMPARISON + entities * moved)),
        ],
    )
