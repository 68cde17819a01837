"""The gate: is a candidate good enough to take the place of the current release?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.limits import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pbg_tasks.config import Gates


# A graph gains and loses entities every night, which hardly moves MRR (it falls with the logarithm of their number);
# a step beyond this share means that two nights were asked different things.
CANDIDATE_DRIFT = 0.1


def judge(gates: Gates, candidate: Mapping[str, Any], current: Mapping[str, Any] | None) -> Verdict:
    """Judge a candidate.

    Args:
        gates: the limits.
        candidate: its evaluation, as ``EvaluationReport.to_json`` gives it.
        current: that of the release before; None when there is none.
    """
    return Verdict(tuple(_checks(gates, candidate, current)))


def _checks(gates: Gates, candidate: Mapping[str, Any], current: Mapping[str, Any] | None) -> Iterator[Check]:
    yield _finite(candidate)
    mrr = _filtered_mrr(candidate)
    yield _floor("min_mrr", mrr, gates.min_mrr, f"filtered MRR {mrr:.4f}")
    yield from _alive(candidate)
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
