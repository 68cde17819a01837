"""Multi-label node classification from embeddings, by the protocol of DeepWalk.

Perozzi et al. 2014, section 5.3.

One-vs-rest logistic regression is fitted to a share of the labelled nodes; of every other node the ``k`` best labels
are predicted, where ``k`` is its true number of labels. Micro- and macro-F1 are averaged over random splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from examples.data.archives import read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

INVERSE_L2 = 1.0  # scikit-learn's and liblinear's C, unchanged in DeepWalk's own script
_MAX_ITERATIONS = 200


@dataclass(frozen=True, slots=True)
class LabelledNodes:
    """Nodes with labels.

    Attributes:
        names: of the N nodes, in order.
        labels_NL: bool, which of the L labels each has; at least one.
    """

    names: list[str]
    labels_NL: np.ndarray

    @classmethod
    def read(cls, path: Path) -> LabelledNodes:
        """Read lines of node and label, separated by a tab."""
        pairs = read_rows(path, columns=2)
        names, node = np.unique([pair[0] for pair in pairs], return_inverse=True)
        labels, label = np.unique([pair[1] for pair in pairs], return_inverse=True)
        labels_NL = np.zeros((len(names), len(labels)), bool)
        labels_NL[node, label] = True
        return cls(names.tolist(), labels_NL)


@dataclass(frozen=True, slots=True)
class F1:
    """F1 of predicted labels.

    Attributes:
        micro: of all decisions together.
        macro: mean over labels; 0 for a label that is neither there nor predicted, as scikit-learn counts it.
    """

    micro: float
    macro: float

    @classmethod
    def of(cls, truth_NL: np.ndarray, predicted_NL: np.ndarray) -> F1:
        """Compare predicted labels with true ones, bool (N, L) both."""
        right_L = (truth_NL & predicted_NL).sum(0)
        either_L = truth_NL.sum(0) + predicted_NL.sum(0)
        return cls(
            micro=float(2 * right_L.sum() / max(either_L.sum(), 1)),
            macro=float((2 * right_L / np.maximum(either_L, 1)).mean()),
        )


def fit(x_ND: Tensor, labels_NL: Tensor, inverse_l2: float = INVERSE_L2) -> Tensor:
    """Fit one logistic regression a label, by L-BFGS.

    It minimises ``|w|^2 / 2 + inverse_l2 * sum of log losses``.

    Returns:
        (D + 1, L), the last row the intercepts, which are not penalised.
    """
    weights = torch.zeros(x_ND.shape[1] + 1, labels_NL.shape[1], dtype=x_ND.dtype, requires_grad=True)
    target_NL = labels_NL.to(x_ND.dtype)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=_MAX_ITERATIONS, tolerance_grad=1e-4, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(_scores(x_ND, weights), target_NL, reduction="sum")
        total: Tensor = inverse_l2 * loss + weights[:-1].square().sum() / 2
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return weights.detach()


def _scores(x_ND: Tensor, weights: Tensor) -> Tensor:
    return x_ND @ weights[:-1] + weights[-1]


def best_labels(scores_NL: np.ndarray, count_N: np.ndarray) -> np.ndarray:
    """Return the labels of each row with the highest scores.

    The result is bool (N, L), with ``count_N`` labels in each row.
    """
    place_NL = np.argsort(np.argsort(-scores_NL, axis=1, kind="stable"), axis=1)
    chosen: np.ndarray = place_NL < count_N[:, np.newaxis]
    return chosen


def score_split(x_ND: np.ndarray, labels_NL: np.ndarray, *, share: float, seed: int) -> F1:
    """Fit to a random ``share`` of the nodes and score the others."""
    order = np.random.default_rng(seed).permutation(len(x_ND))
    seen, unseen = np.split(order, [round(share * len(order))])
    x, labels = torch.from_numpy(x_ND), torch.from_numpy(labels_NL)
    scores_NL = _scores(x[unseen], fit(x[seen], labels[seen])).numpy()
    truth_NL = labels_NL[unseen]
    return F1.of(truth_NL, best_labels(scores_NL, truth_NL.sum(1)))


def f1_by_share(
    x_ND: np.ndarray, labels_NL: np.ndarray, *, shares: Sequence[float], splits: int
) -> dict[str, dict[str, float]]:
    """Return F1 and its deviation between splits, by share.

    They are the mean micro- and macro-F1 in percent; a share is that of labelled nodes.
    """
    result = {}
    for share in shares:
        found = [score_split(x_ND, labels_NL, share=share, seed=seed) for seed in range(splits)]
        micro, macro = np.array([[f1.micro, f1.macro] for f1 in found]).T * 100
        result[f"{share:.0%}"] = {
            "micro_f1": round(float(micro.mean()), 3),
            "macro_f1": round(float(macro.mean()), 3),
            "micro_f1_deviation": round(float(micro.std()), 3),
        }
    return result
