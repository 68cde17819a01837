"""Steps of a search, beside the training of its candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import PlanResult
from pbg_tasks.config.tune_space import BASE, beginning, require_tunable
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import fraction, say
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.search import PATCH, SearchContext, described, read_search

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.report.documents import TuneDocument


class Started(TypedDict):
    """Answer of ``tune-start``."""

    task: str
    run: str
    search: str
    rungs: int
    candidates: int


class Selected(TypedDict):
    """Answer of ``tune-select``: the candidates of a rung."""

    task: str
    run: str
    search: str
    rung: int
    trials: list[str]


def start(spec: Path, snapshot: str, *, overrides: Sequence[str] = (), accept_data: str | None = None) -> Started:
    """Check the space, plan the shared run, and store the search.

    Raises:
        ConfigError: the spec or its space is wrong; nothing is stored then.
    """
    from pbg_tasks.tasks.nightly.plan import plan

    given = [*overrides, *BASE]
    given += beginning(load_graph_spec(spec, given))
    graph = load_graph_spec(spec, given)
    search = require_tunable(graph, source=str(spec))
    planned = plan(spec, snapshot, overrides=given, publish=False, accept_data=accept_data)
    run = RunContext.open(PlanResult.model_validate(planned).run)
    context = SearchContext.begin(run, graph, search)
    count, rungs = len(context.search.candidates), len(context.search.epochs)
    say(f"tune: {count} candidates, {rungs} rung{'s' * (rungs > 1)}; search {context.url}")
    return {"task": "tune-start", "run": run.url, "search": context.id, "rungs": rungs, "candidates": count}


def select(url: str, search_id: str, rung: int) -> Selected:
    """Return the candidates of a rung, after deciding the rung before."""
    context = SearchContext.open(url, search_id)
    if rung:
        decide(context, rung - 1, {})
    trials = list(context.trials(rung))
    return {"task": "tune-select", "run": url, "search": search_id, "rung": rung, "trials": trials}


def finish(url: str, search_id: str) -> TuneDocument:
    """Decide the last rung, and store the best values as a patch.

    Raises:
        QualityGateError: no candidate could be trained.
        ConfigError: an earlier rung is not decided.
    """
    context = SearchContext.open(url, search_id)
    decide(context, len(context.search.epochs) - 1, {})
    document = read_search(context)
    if document["patch"] is None:
        raise ConfigError(f"{context.url}: an earlier rung is not decided; run `pbg tune` again")
    context.run.store.put(context.key(PATCH), document["patch"].encode())
    return document


def decide(context: SearchContext, rung: int, lost: Mapping[str, str]) -> None:
    """Decide a rung, unless that was done; raises as ``SearchContext.decide`` does."""
    if context.decision(rung) is not None:
        return
    decision = context.decide(rung, lost)
    first, metric = decision.ranking[0], context.search.metric
    rungs = len(context.search.epochs)
    if first.status != "finished":
        say(f"tune: rung {rung + 1} of {rungs}: every candidate failed; each counts by its earlier rungs")
        return
    goes_on = f"; {len(decision.kept)} of {len(decision.ranking)} candidates go on" if rung + 1 < rungs else ""
    say(
        f"tune: rung {rung + 1} of {rungs}: best {metric} {fraction(first.figures.get(metric, 0.0))} "
        f"({described(context.changes(first.trial).changes)}){goes_on}"
    )
