"""Size of the sample of valid edges for early stopping.

It works without torch, so that a plan can forecast the memory of ranking it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig

FEWEST = 400
"""Least number of edges of a sample.

Fewer edges decide nothing, so the training continues to its last epoch. With 200, a night of AS-733 stopped too early
by chance and ranked a tenth worse.
"""
MOST = 20_000
"""Most edges of a sample; they give MRR to some .002."""
CALL = 200
"""Number of edges whose ranking costs as much as a bucket itself."""
_MEASURED = 1000  # least number of negatives with which an edge's ranking was measured


def all_compared(config: ModelConfig) -> bool:
    """Return whether edges are trained among all entities of a partition."""
    return all(relation.all_negs for relation in config.relations)


def negatives_of_edge(config: ModelConfig, counts: Mapping[str, Sequence[int]]) -> int:
    """Return the number of negatives of an edge and side in training.

    Args:
        config: of the training.
        counts: entities of each partition, by type.
    """
    if not all_compared(config):
        return config.num_batch_negs + config.num_uniform_negs
    return min(max(counts[entity]) for each in config.relations for entity in (each.lhs, each.rhs))


def affordable(trained: int, negatives: int, dimension: int, *, all_negs: bool = False) -> int:
    """Return the number of edges that 4 % of an epoch rank.

    Microseconds of one processor, of the native engine with AVX2; the torch engine takes longer for an edge, and ranks
    in the same time. Of 7 models with 100 to 1,050 negatives and 32 to 400 dimensions, none took more than 5 %.

    Args:
        trained: number of edges of an epoch.
        negatives: number of negatives of an edge and side.
        dimension: of the embeddings.
        all_negs: whether the negatives are all entities, among which an edge is ranked, too.

    Returns:
        The number; 0 where it is below ``FEWEST``.
    """
    of_edge = 0.2 + negatives * (0.002 + 0.00007 * dimension)
    of_ranking = (30 + 0.03 * dimension) * (max(1.0, negatives / _MEASURED) if all_negs else 1.0)
    found = int(0.04 * trained * of_edge / of_ranking)
    return min(found, MOST) if found >= FEWEST else 0


def ranked_buckets(edges: int, valid: int, buckets: int) -> int:
    """Return the number of buckets to rank.

    They are few, because each costs time by itself.

    Args:
        edges: that can be ranked.
        valid: number of valid edges.
        buckets: number of all buckets.
    """
    each = max(valid // max(buckets, 1), CALL)
    return min(max(edges // each, min(edges, 1)), buckets)


def ranked_in_bucket(edges: int, valid: int, buckets: int) -> int:
    """Return the most edges of a sample in one bucket.

    The arguments are those of ``ranked_buckets``; 0: there is no sample.
    """
    chosen = ranked_buckets(edges, valid, buckets)
    size = min(edges, chosen * valid // max(buckets, 1))
    return edges // chosen if chosen and size >= FEWEST else 0
