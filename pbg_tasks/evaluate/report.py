"""Report of an evaluation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.evaluate.ranking import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from pbg_tasks.evaluate.paired_comparison import PairedComparison
    from pbg_tasks.model.parameters import Side


HITS = (1, 10, 50)


def figures(ranks: np.ndarray, candidates: np.ndarray) -> dict[str, float]:
    """Summarise ranks.

    Args:
        ranks: int64 (Q,), from 1.
        candidates: int64 (Q,), number of entities each was ranked among, the true one included.

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
    """Return the expected figures of random scores.

    They are MRR H(n)/n, hits k/n, MR (n+1)/2.
    """
    if not len(candidates):
        return {}
    n = candidates.astype(np.float64)
    harmonic = np.log(n) + np.euler_gamma + 1 / (2 * n) - 1 / (12 * n * n)  # error of 1 % for n = 1, 0.1 % for 2
    result = {"mr": ((n + 1) / 2).mean(), "mrr": np.minimum(harmonic / n, 1).mean()}
    result |= {f"hits{k}": np.minimum(k / n, 1).mean() for k in HITS}
    return {name: round(float(value), 8) for name, value in result.items()}


TIES = "a candidate that scores as high as the true entity, within rounding, counts as better"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Figures of held-out edges (each a result of ``figures``).

    Attributes:
        split: of the held-out edges.
        edges: number of ranked edges; each is ranked twice, once a side.
        held_out: number of edges of the split, of which a sample is ranked where there are more.
        candidates: largest number of entities an edge was ranked among, by type.
        sampled: whether they are a sample.
        raw: over all queries, against all candidates.
        filtered: same, without other entities known to be right.
        interval: of the filtered MRR, a result of ``paired_comparison.mean_interval``; None where no edge is left out.
        random: expected figures of random scores, filtered.
        popularity: figures of a ranking by frequency in training, filtered; None when training edges were not given.
        sides: by predicted side, ``raw`` and ``filtered``.
        relations: by relation name, ``raw`` and ``filtered``; of a sample, with further edges of rare relations.
        against: comparison with another model on the same edges; None when there was none.
        best: same with the best model of the last nights; None where it is no third one.
        replaced: same with the model whose place tonight's would take.
    """

    split: str
    edges: int
    held_out: int | None
    candidates: dict[str, int]
    sampled: bool
    raw: Figures
    filtered: Figures
    interval: Figures | None
    random: Figures
    popularity: Figures | None
    sides: dict[str, dict[str, Figures]]
    relations: dict[str, dict[str, Figures]]
    against: PairedComparison | None
    best: PairedComparison | None = None
    replaced: PairedComparison | None = None

    @classmethod
    def of(
        cls,
        sides: Mapping[Side, Ranks],
        rel: np.ndarray,
        relation_names: Sequence[str],
        *,
        split: str,
        candidates: dict[str, int],
        sampled: bool,
        popular: Sequence[np.ndarray] = (),
        against: PairedComparison | None = None,
        best: PairedComparison | None = None,
        replaced: PairedComparison | None = None,
        counted: np.ndarray | None = None,
        held_out: int | None = None,
        interval: Figures | None = None,
    ) -> Self:
        """Summarise ranks.

        Args:
            sides: of all edges, by side.
            rel: int64 (N,), relation of each edge.
            relation_names: by relation id.
            split: see the attributes.
            candidates: same.
            sampled: same.
            popular: filtered ranks by frequency in training, of each side.
            against: see the attributes.
            best: same.
            replaced: same.
            counted: int64 (M,), rows of the edges that count over all relations; None: all.
            held_out: see the attributes.
            interval: same.
        """
        over_all = np.arange(len(rel)) if counted is None else counted
        everything = Ranks.joined([ranks.select(over_all) for ranks in sides.values()])
        of_relations = Ranks.joined(list(sides.values()))
        return cls(
            split=split,
            edges=len(over_all),
            held_out=held_out,
            candidates=candidates,
            sampled=sampled,
            raw=figures(everything.raw, everything.raw_candidates),
            filtered=figures(everything.filtered, everything.filtered_candidates),
            interval=interval,
            random=random_scorer(everything.filtered_candidates),
            popularity=figures(np.concatenate([ranks[over_all] for ranks in popular]), everything.filtered_candidates)
            if popular
            else None,
            sides={str(side): rank_figures([ranks.select(over_all)]) for side, ranks in sides.items()},
            relations={
                relation_names[number]: rank_figures([of_relations.select(rows)])
                for number, rows in by_relation(np.tile(rel, len(sides)))
            },
            against=against,
            best=best,
            replaced=replaced,
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return plain JSON values, all of them finite.

        Values that were not measured are left out.
        """
        return {name: value for name, value in asdict(self).items() if value is not None} | {"ties": TIES}


def by_relation(rel: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each relation that edges have, ascending, and their rows.

    The rows are int64 and ascending; all of them are found by one sort.

    Args:
        rel: int64 (N,), relation of each edge.
    """
    order = np.argsort(rel, kind="stable")
    numbers, starts = np.unique(rel[order], return_index=True)
    return zip(numbers.tolist(), np.split(order, starts[1:]), strict=True) if len(rel) else iter(())


def rank_figures(sides: Sequence[Ranks]) -> dict[str, Figures]:
    """Return the figures of ranks of one or both sides.

    They are ``raw`` and ``filtered``.
    """
    ranks = Ranks.joined(sides)
    return {
        "raw": figures(ranks.raw, ranks.raw_candidates),
        "filtered": figures(ranks.filtered, ranks.filtered_candidates),
    }
