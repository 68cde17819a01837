"""The simulations: ranks, partitions, exchange, and PBG's published settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.scaling.graphs import FREEBASE, TIES, TWITTER, work_of
from benchmarks.scaling.links import Network
from benchmarks.scaling.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.scaling.graphs import Graph

Row = dict[str, Any]
"""One simulation: its settings and its outcome."""

RANKS = (1, 2, 4, 8, 16, 32, 64)
PARTITIONS = (16, 32, 64, 128, 256)
FASTER = 9.1
"""Ratio of our native engine's speed to PBG's, by CPU: the LiveJournal step of docs/performance.md."""
ORDERS = ("rows", "random", "affinity", "inside_out")
PBG = Network(link=1.1e9, record=0.0, poll=1.0)
"""PBG's lock server records nothing, and its trainers ask it once a second."""

_QUICK_RANKS, _QUICK_PARTITIONS = 8, 16
_LARGE = 256  # takes a minute a simulation: with the most ranks only
_TIED = ((16, 4), (32, 8), (64, 16), (16, 8), (32, 16))


def scaling(*, quick: bool) -> Iterator[Row]:
    """Simulate Freebase on 1 to 64 ranks.

    The partitions are as many as let all of them work, and more.
    """
    for partitions in PARTITIONS:
        for ranks in RANKS:
            useful = ranks <= partitions // 2 and (partitions < _LARGE or ranks == RANKS[-1])
            if useful and (not quick or (ranks <= _QUICK_RANKS and partitions <= _QUICK_PARTITIONS)):
                for servers in (0, -1):
                    yield _row(FREEBASE, partitions, ranks, servers)
                    if partitions == max(_QUICK_PARTITIONS, 2 * ranks):
                        yield _row(FREEBASE, partitions, ranks, servers, faster=FASTER)


def ahead(*, quick: bool) -> Iterator[Row]:
    """Simulate gangs whose partitions move behind the training."""
    for partitions in PARTITIONS:
        for ranks in RANKS[1:]:
            if partitions < _LARGE and (not quick or (ranks <= _QUICK_RANKS and partitions <= _QUICK_PARTITIONS)):
                fewest = max(_QUICK_PARTITIONS, 2 * ranks)
                for servers in (0, -1):
                    if partitions in {fewest, 2 * ranks, 4 * ranks}:
                        yield _row(FREEBASE, partitions, ranks, servers, moves_ahead=True)
                    if partitions == fewest:
                        yield _row(FREEBASE, partitions, ranks, servers, faster=FASTER, moves_ahead=True)


def ties(*, quick: bool) -> Iterator[Row]:
    """Simulate orders of buckets that cost the same I/O."""
    for partitions, ranks in _TIED:
        if not quick or partitions <= _QUICK_PARTITIONS:
            for order in ORDERS:
                yield _row(FREEBASE, partitions, ranks, -1, order=order)


def published() -> Iterator[Row]:
    """Simulate the measurements of PBG's authors, with PBG's own methods."""
    for graph in (FREEBASE, TWITTER):
        alone = graph.published[0].hours
        for machines, partitions, hours in graph.published[1:]:
            row = _row(graph, partitions, machines, -1, order="rows", network=PBG)
            yield row | {"published": round(alone / hours, 2)}


def _row(
    graph: Graph,
    partitions: int,
    ranks: int,
    servers: int,
    *,
    faster: float = 1.0,
    order: str = TIES,
    network: Network | None = None,
    moves_ahead: bool = False,
) -> Row:
    work = work_of(graph, partitions, faster=faster, ties=order)
    outcome = simulate(work, ranks, network or Network(), servers=servers, ahead=moves_ahead)
    return {
        "graph": graph.name,
        "partitions": partitions,
        "ranks": ranks,
        "servers": servers,
        "faster": faster,
        "ties": order,
        "speed_up": round(outcome.speed_up, 2),
        "busy": round(outcome.busy, 3),
        "waiting": round(outcome.waiting, 3),
        "moved_gb": round(outcome.moved / 1e9),
        "seconds": round(outcome.seconds),
    }
