"""Figures of ranks: MR, MRR, Hits@k, AUC."""

from __future__ import annotations

import numpy as np

HITS = (1, 10, 50)


def figures(ranks: np.ndarray, candidates: np.ndarray) -> dict[str, float]:
    """Summarise ranks.

    Args:
        ranks: int64 (Q,), from 1.
        candidates: int64 (Q,), how many entities each was ranked among, the true one included.

    Returns:
        ``count``, ``mr``, ``mrr``, ``hits1``, ``hits10``, ``hits50`` and ``auc``, or only ``count`` when there are no
        ranks. AUC is the share of the other candidates that score below the true one, averaged over queries. PBG
        estimates it by comparing scores of random positives with those of random negatives of other edges; here both
        belong to the same query, so a bias of a query as a whole cancels out, and ties count as lost.
    """
    if not len(ranks):
        return {"count": 0}
    others = np.maximum(candidates - 1, 1)
    totals = {"mr": ranks.sum(), "mrr": (1 / ranks).sum()}
    totals |= {f"hits{k}": np.count_nonzero(ranks <= k) for k in HITS}
    totals["auc"] = (1 - (ranks - 1) / others).sum()
    return {"count": len(ranks)} | {name: round(float(total) / len(ranks), 8) for name, total in totals.items()}


def random_scorer(candidates: np.ndarray) -> dict[str, float]:
    """Return what a scorer that knows nothing is expected to reach: MRR H(n)/n, hits k/n, MR (n+1)/2."""
    if not len(candidates):
        return {}
    n = candidates.astype(np.float64)
    harmonic = np.log(n) + np.euler_gamma + 1 / (2 * n) - 1 / (12 * n * n)  # 1 % off for n = 1, 0.1 % for 2
    result = {"mr": ((n + 1) / 2).mean(), "mrr": np.minimum(harmonic / n, 1).mean()}
    result |= {f"hits{k}": np.minimum(k / n, 1).mean() for k in HITS}
    return {name: round(float(value), 8) for name, value in result.items()}
