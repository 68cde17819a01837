"""Figures of ranks: MR, MRR, Hits@k, AUC."""

from __future__ import annotations

import numpy as np

HITS = (1, 10, 50)
_EULER = 0.5772156649015329


def figures(ranks: np.ndarray, candidates: np.ndarray) -> dict[str, float]:
    """Summarise ranks.

    Args:
        ranks: int64 (Q,), from 1.
        candidates: int64 (Q,), how many entities each was ranked among, the true one included.

    Returns:
        ``count``, ``mr``, ``mrr``, ``hits1``, ``hits10``, ``hits50`` and ``auc``: the share of the other candidates
        that score below the true one, averaged over queries. PBG estimates the same from random pairs.
    """
    if not len(ranks):
        return {"count": 0}
    others = np.maximum(candidates - 1, 1)
    result = {"count": len(ranks), "mr": ranks.mean(), "mrr": (1 / ranks).mean()}
    result |= {f"hits{k}": (ranks <= k).mean() for k in HITS}
    result["auc"] = (1 - (ranks - 1) / others).mean()
    return {name: round(float(value), 6) if name != "count" else int(value) for name, value in result.items()}


def random_scorer(candidates: np.ndarray) -> dict[str, float]:
    """Return what a scorer that knows nothing is expected to reach: MRR H(n)/n, hits k/n, MR (n+1)/2."""
    n = candidates.astype(np.float64)
    harmonic = np.log(n) + _EULER + 1 / (2 * n)  # within 1e-3 from n = 10 on
    result = {"mr": ((n + 1) / 2).mean(), "mrr": np.minimum(harmonic / n, 1).mean()}
    result |= {f"hits{k}": np.minimum(k / n, 1).mean() for k in HITS}
    return {name: round(float(value), 8) for name, value in result.items()}
