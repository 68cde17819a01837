"""The gate: is a candidate good enough to take the place of the current release?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pbg_tasks.config import Gates


# A graph gains and loses entities every night, which hardly moves MRR (it falls with the logarithm of their number);
# a step beyond this share means that two nights were asked different things.
CANDIDATE_DRIFT = 0.1


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
    yield _finite(candidate)
    yield _floor("min_edges", data["edges"], gates.min_edges, f"{data['edges']} edges")
    mrr = _filtered_mrr(candidate)
    yield _floor("min_mrr", mrr, gates.min_mrr, f"filtered MRR {mrr:.4f}")
    yield from _alive(candidate)
    yield _gone(gates, data["entities"])
    if current is not None:
        yield _drop(gates, candidate, current)


def _filtered_mrr(evaluation: Mapping[str, Any]) -> float:
    """Return the figure that is judged; NaN, which fulfils no limit, when there is none."""
    value = evaluation.get("filtered", {}).get("mrr")
    return math.nan if value is None else float(value)


def _finite(candidate: Mapping[str, Any]) -> Check:
    figures = {f"{kind} {name}": value for kind in ("raw", "filtered") for name, value in candidate[kind].items()}
    figures |= {"filtered mrr": _filtered_mrr(candidate)}
    bad = [name for name, value in figures.items() if not math.isfinite(value)]
    sentence = f"not a finite number: {', '.join(bad)}" if bad else "all figures are finite"
    return Check("finite", not bad, None, None, sentence)


def _alive(candidate: Mapping[str, Any]) -> Iterator[Check]:
    """Check what was found wrong with the embeddings themselves, by entity type."""
    for entity, health in candidate.get("health", {}).items():
        problems = health["problems"]
        sentence = f"{entity}: {'; '.join(problems) or 'the embeddings are finite and have not collapsed'}"
        yield Check(f"health of {entity}", not problems, health["cosine"], None, sentence)


def _floor(name: str, value: float, limit: float, measured: str) -> Check:
    return Check(name, value >= limit, _or_none(value), limit, f"{measured}, at least {limit:g} asked")


def _gone(gates: Gates, entities: Mapping[str, int]) -> Check:
    before = entities["kept"] + entities["gone"]
    share = entities["gone"] / before if before else 0.0
    limit = gates.max_gone_entities
    sentence = f"{share:.1%} of the known entities are gone from the snapshot, at most {limit:.1%} allowed"
    return Check("max_gone_entities", share <= limit, round(share, 6), limit, sentence)


def _drop(gates: Gates, candidate: Mapping[str, Any], current: Mapping[str, Any]) -> Check:
    name, limit = "max_mrr_drop", gates.max_mrr_drop
    reason = _incomparable(candidate, current)
    if reason:
        sentence = f"not compared with the current release: {reason}"
        return Check(name, passed=True, value=None, limit=limit, sentence=sentence)
    before, mrr = _filtered_mrr(current), _filtered_mrr(candidate)
    drop = 1 - mrr / before
    sentence = f"filtered MRR {mrr:.4f} after {before:.4f}: {-drop:+.1%}, a fall of {limit:.0%} allowed"
    return Check(name, drop <= limit, _or_none(drop), limit, sentence)


def _incomparable(candidate: Mapping[str, Any], current: Mapping[str, Any]) -> str | None:
    """Say why two evaluations do not measure the same, or None."""
    before = _filtered_mrr(current)
    if not (math.isfinite(before) and before > 0):
        return f"its filtered MRR is {before:g}"
    if candidate["split"] != current["split"]:
        return f"it was evaluated on {current['split']} edges, the candidate on {candidate['split']} edges"
    if candidate["sampled"] != current["sampled"]:
        return "one was ranked against all entities, the other against a sample of them"
    ours, theirs = candidate["candidates"], current["candidates"]
    if ours.keys() != theirs.keys():
        return f"entity types {sorted(theirs)} then, {sorted(ours)} now"
    for entity, count in ours.items():
        if abs(count - theirs[entity]) > CANDIDATE_DRIFT * theirs[entity]:
            return f"{theirs[entity]} candidates of type {entity} then, {count} now"
    return None


def _or_none(value: float) -> float | None:
    """Return a figure for JSON, which has no word for NaN."""
    return round(value, 6) if math.isfinite(value) else None
