"""The gate: is a candidate good enough to take the place of the current release?"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.gates import EVERY_OTHER
from pbg_tasks.config.limits import Check, Verdict, only_warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pbg_tasks.config import Gates
    from pbg_tasks.config.gates import DriftGates, RelationFloor

    Found = Mapping[str, Any]

_SHOWN_RELATIONS = 3


def judge(gates: Gates, evaluation: Found, *, drift: Found | None = None, before: Found | None = None) -> Verdict:
    """Judge a candidate.

    Args:
        gates: the limits.
        evaluation: of the candidate, as the task ``eval`` gives it; with how the current release did on the same.
        drift: what the task ``drift`` found; None: it has not looked.
        before: evaluation of the current release, as it is kept with it; None when there is none.
    """
    return Verdict(tuple(_checks(gates, evaluation, drift or {}, before or {})))


def _checks(gates: Gates, evaluation: Found, drift: Found, before: Found) -> Iterator[Check]:
    yield _finite(evaluation)
    mrr = _filtered_mrr(evaluation)
    yield _floor("min_mrr", mrr, gates.min_mrr, f"filtered MRR {mrr:.4f}")
    yield from _over_popularity(gates, mrr, evaluation.get("popularity") or {})
    yield from _relations(gates.relations, evaluation.get("relations", {}))
    yield from _alive(evaluation)
    against = evaluation.get("against") or {}
    if against:
        yield _drop(gates, against)
    yield from _covered(gates, evaluation.get("coverage", {}))
    missing = against.get("awaited")
    norms = _norms(gates.drift, evaluation.get("health", {}), before.get("health", {}))
    for check in chain(_moved(gates.drift, drift.get("types", {})), norms):
        yield check if missing is None else only_warning(check, _no_release_of(missing))


def _filtered_mrr(figures: Found) -> float:
    """Return the figure that is judged; NaN, which fulfils no limit, when there is none."""
    value = figures.get("filtered", {}).get("mrr")
    return math.nan if value is None else float(value)


def _finite(evaluation: Found) -> Check:
    figures = {f"{kind} {name}": value for kind in ("raw", "filtered") for name, value in evaluation[kind].items()}
    figures |= {"filtered mrr": _filtered_mrr(evaluation)}
    bad = [name for name, value in figures.items() if not math.isfinite(value)]
    sentence = f"not a finite number: {', '.join(bad)}" if bad else "all figures are finite"
    return Check("finite", not bad, None, None, sentence)


def _floor(name: str, value: float, limit: float, measured: str) -> Check:
    return Check(name, value >= limit, _or_none(value), limit, f"{measured}, at least {limit:g} asked")


def _over_popularity(gates: Gates, mrr: float, popularity: Found) -> Iterator[Check]:
    """Check that a model knows more than each entity's number of edges."""
    of_popularity = popularity.get("mrr")
    if of_popularity and gates.min_over_popularity.asked:
        ratio = mrr / of_popularity
        measured = (
            f"filtered MRR {mrr:.4f} is {ratio:.3g} times that of ranking by edges in training, {of_popularity:.4f}"
        )
        yield gates.min_over_popularity.judge("min_over_popularity", ratio, measured, "{:g} times")


def _relations(floors: Mapping[str, RelationFloor], found: Found) -> Iterator[Check]:
    """Check the relations that have a floor of their own, one by one, then all others together."""
    for name, floor in floors.items():
        if name != EVERY_OTHER:
            yield _relation(name, floor, found.get(name, {}))
    floor_of_others = floors.get(EVERY_OTHER)
    if floor_of_others is not None:
        yield _others(floor_of_others, {name: each for name, each in found.items() if name not in floors})


def _relation(name: str, floor: RelationFloor, found: Found) -> Check:
    check, edges, mrr = f"min_mrr of {name}", _edges(found), _filtered_mrr(found)
    if edges < floor.min_edges:
        sentence = f"{name} is not judged: {edges} held-out edges, fewer than min_edges {floor.min_edges}"
        return Check(check, passed=True, value=_or_none(mrr), limit=floor.min_mrr, sentence=sentence, warned=True)
    return _floor(check, mrr, floor.min_mrr, f"filtered MRR {mrr:.4f} of {name} ({edges} held-out edges)")


def _others(floor: RelationFloor, found: Found) -> Check:
    judged = {name: _filtered_mrr(each) for name, each in found.items() if _edges(each) >= floor.min_edges}
    lowest = sorted(judged, key=lambda name: judged[name])
    below = [name for name in lowest if judged[name] < floor.min_mrr]
    named = ", ".join(f"{name} {judged[name]:.4f}" for name in below[:_SHOWN_RELATIONS])
    more = ", ..." if len(below) > _SHOWN_RELATIONS else ""
    said = f"{len(below)} of {len(judged)} relations with {floor.min_edges} held-out edges or more have a lower MRR"
    sentence = f"{said}{f' ({named}{more})' if below else ''}, at least {floor.min_mrr:g} asked of each"
    value = _or_none(judged[lowest[0]]) if lowest else None
    return Check(f"min_mrr of {EVERY_OTHER}", not below, value, floor.min_mrr, sentence)


def _edges(found: Found) -> int:
    """Return how many held-out edges figures are of: each is asked on both sides."""
    return int(found.get("filtered", {}).get("count", 0)) // 2


def _alive(evaluation: Found) -> Iterator[Check]:
    """Check what was found wrong with the embeddings themselves, by entity type."""
    for entity, health in evaluation.get("health", {}).items():
        problems = health["problems"]
        sentence = f"{entity}: {'; '.join(problems) or 'the embeddings are finite and have not collapsed'}"
        yield Check(f"health of {entity}", not problems, health["cosine"], None, sentence)


def _drop(gates: Gates, against: Found) -> Check:
    name, limit = "max_mrr_drop", gates.max_mrr_drop
    now, then = (_filtered_mrr(against.get(model, {})) for model in ("candidate", "current"))
    reason, edges = against["reason"], against.get("edges") or 0
    if reason is None and edges < gates.min_common_edges:
        sentence = (
            f"not compared with release {against['release']}: only {edges} held-out edges are between entities that "
            f"both know, fewer than min_common_edges {gates.min_common_edges}"
        )
        passed = gates.on_few_common_edges != "block"
        return Check(name, passed=passed, value=None, limit=limit, sentence=sentence, warned=passed)
    if reason is None and then <= 0:
        reason = f"its filtered MRR is {then:g}"
    if reason is not None:
        sentence = f"not compared with release {against['release']}: {reason}"
        return Check(name, passed=True, value=None, limit=limit, sentence=sentence)
    drop, difference = 1 - now / then, against["difference"]
    low, high = (difference[end] / then for end in ("low", "high"))
    sentence = (
        f"filtered MRR {now:.4f} where release {against['release']} has {then:.4f} on the same {against['edges']} "
        f"edges: {-drop:+.1%} (95 % interval {low:+.1%} to {high:+.1%}), a fall of {limit:.0%} allowed"
    )
    if (missing := against.get("awaited")) is not None:
        sentence += f"; that is a release of {against['snapshot']!r}, {_no_release_of(missing)}"
    return Check(name, drop <= limit, _or_none(drop), limit, sentence)


def _no_release_of(snapshot: str) -> str:
    return f"for {snapshot!r}, which comes between, has no release yet"


def _covered(gates: Gates, coverage: Found) -> Iterator[Check]:
    for entity, found in coverage.items():
        if found["new"] and gates.min_coverage.asked:
            share = found["covered"] / found["new"]
            measured = f"{share:.1%} of {found['new']} new entities of type {entity} were reached by training"
            yield gates.min_coverage.judge(f"min_coverage of {entity}", share, measured, "{:.1%}")


def _moved(gates: DriftGates, types: Found) -> Iterator[Check]:
    for entity, found in types.items():
        for name, limit, value, what in (
            ("min_cosine", gates.min_cosine, found["cosine"]["mean"], "mean cosine to the release before"),
            ("min_overlap", gates.min_overlap, found["overlap"]["mean"], "share of nearest neighbours that were kept"),
        ):
            if limit.asked and value is not None:
                yield limit.judge(f"drift.{name} of {entity}", value, f"{entity}: {what} {value:.4f}")


def _norms(gates: DriftGates, now: Found, before: Found) -> Iterator[Check]:
    for entity in sorted(now.keys() & before.keys()):
        norm, was = (health[entity].get("norm_median") for health in (now, before))
        if gates.max_norm_change.asked and norm and was:
            measured = f"{entity}: median norm {norm:.4g} after {was:.4g}"
            change = max(norm / was, was / norm)
            name = f"drift.max_norm_change of {entity}"
            yield gates.max_norm_change.judge(name, change, measured, "a factor of {:g}")


def _or_none(value: float) -> float | None:
    """Return a figure for JSON, which has no word for NaN."""
    return round(value, 6) if math.isfinite(value) else None
