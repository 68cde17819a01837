"""Steps of a search, beside the training of its candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import PlanResult
from pbg_tasks.config.tune_space import BASE, require_tunable
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import say
from pbg_tasks.report.tune import tune_document
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.tuning.search import PATCH, SearchContext, described

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.config.tune_results import Outcome
    from pbg_tasks.report.documents import TuneDocument

_THREADS = 8


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


def read_search(context: SearchContext) -> TuneDocument:
    """Read everything that the page of a search shows."""
    rungs = []
    for number in range(len(context.search.epochs)):
        if (decision := context.decision(number)) is None:
            break
        rungs.append(decision)

    def outcomes(name: str) -> list[Outcome]:
        found = []
        for number in range(len(context.search.epochs)):
            if number and (len(rungs) < number or name not in rungs[number - 1].kept):
                break
            if (outcome := context.outcome(name, number)) is None:
                break
            found.append(outcome)
            if outcome.status != "finished":
                break
        return found

    names = [each.trial for each in context.search.candidates]
    return tune_document(
        {
            "run": context.run.run_id,
            "store": context.run.store.url,
            "search_id": context.id,
            "search": context.search,
            "rungs": rungs,
            "outcomes": dict(zip(names, in_parallel(outcomes, names, _THREADS), strict=True)),
        }
    )


def decide(context: SearchContext, rung: int, lost: Mapping[str, str]) -> None:
    """Decide a rung, unless that was done; raises as ``SearchContext.decide`` does."""
    if context.decision(rung) is not None:
        return
    decision = context.decide(rung, lost)
    first, metric, rungs = decision.ranking[0], context.search.metric, len(context.search.epochs)
    goes_on = f"; {len(decision.kept)} of {len(decision.ranking)} candidates go on" if rung + 1 < rungs else ""
    say(
        f"tune: rung {rung + 1} of {rungs}: best {metric} {first.figures.get(metric, 0.0):.4f} "
        f"({described(context.changes(first.trial).changes)}){goes_on}"
    )
