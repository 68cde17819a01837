"""The gate: is a candidate good enough to take the place of the current release?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pbg_tasks.config import Gates


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: whether it held, the figure and its limit, and a sentence for people."""

    name: str
    passed: bool
    value: float | None
    limit: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks; a candidate passes when every one does."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether the candidate may be published."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}


def judge(
    gates: Gates, candidate: Mapping[str, Any], current: Mapping[str, Any] | None, data: Mapping[str, Any]
) -> Verdict:
    """Judge a candidate.

    Args:
        gates: the limits.
        candidate: its evaluation, as ``EvaluationReport.to_json`` gives it.
        current: that of the release before; None when there is none.
        data: ``edges`` of the snapshot and ``entities`` (total, new, kept, gone).
    """
    return Verdict(tuple(_checks(gates, candidate, current, data)))


def _checks(
    gates: Gates, candidate: Mapping[str, Any], current: Mapping[str, Any] | None, data: Mapping[str, Any]
) -> Iterator[Check]:
    edges, mrr = data["edges"], candidate["filtered"].get("mrr", math.nan)
    finite = math.isfinite(mrr)
    yield Check("finite", finite, mrr if finite else None, None, f"filtered MRR is {mrr}")
    yield Check(
        "min_edges",
        edges >= gates.min_edges,
        edges,
        gates.min_edges,
        f"{edges} edges, at least {gates.min_edges} asked",
    )
    yield Check(
        "min_mrr", mrr >= gates.min_mrr, mrr, gates.min_mrr, f"filtered MRR {mrr:.4f}, at least {gates.min_mrr:g} asked"
    )
    yield _gone(gates, data["entities"])
    if current is not None:
        yield _drop(gates, candidate, current, mrr)


def _gone(gates: Gates, entities: Mapping[str, int]) -> Check:
    before = entities["kept"] + entities["gone"]
    share = entities["gone"] / before if before else 0.0
    limit = gates.max_gone_entities
    sentence = f"{share:.1%} of the known entities are gone from the snapshot, at most {limit:.1%} allowed"
    return Check("max_gone_entities", share <= limit, round(share, 6), limit, sentence)


def _drop(gates: Gates, candidate: Mapping[str, Any], current: Mapping[str, Any], mrr: float) -> Check:
    before = current["filtered"]["mrr"]
    if (candidate["split"], candidate["sampled"]) != (current["split"], current["sampled"]):
        sentence = "not compared with the current release: it was evaluated on another split or on all candidates"
        return Check("max_mrr_drop", passed=True, value=None, limit=gates.max_mrr_drop, sentence=sentence)
    drop = 1 - mrr / before if before else 0.0
    sentence = f"filtered MRR {mrr:.4f} after {before:.4f}: {-drop:+.1%}, a fall of {gates.max_mrr_drop:.0%} allowed"
    return Check("max_mrr_drop", drop <= gates.max_mrr_drop, round(drop, 6), gates.max_mrr_drop, sentence)
