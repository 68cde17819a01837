"""Forecast of a planned night, and its limits.

The forecast comes from the night's counts and from the results of earlier nights of the graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.config.launch import Launch
from pbg_tasks.config.limits import Verdict
from pbg_tasks.config.names import is_part_of
from pbg_tasks.config.pods import amount
from pbg_tasks.config.results import SHAPES, EvalPartResult, EvalResult, PlanResult
from pbg_tasks.errors import FormatError, QualityGateError
from pbg_tasks.evaluate.sampling import ROUND_EDGES
from pbg_tasks.forecast.calibration import MeasuredNight
from pbg_tasks.forecast.night import NightForecast, forecast_night
from pbg_tasks.forecast.usage import is_of_last_try
from pbg_tasks.forecast.work import EVAL_PART, Work, modelled
from pbg_tasks.formats.names import has_name_index
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.memory.tasks import evaluation_forecast, indexing_peak, preparation_forecast, preparation_peaks
from pbg_tasks.progress import human_count, human_seconds, say
from pbg_tasks.publish import Channel
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.context import CHAIN, RunContext
from pbg_tasks.tasks.nightly.comparison_target import release_before, replaced_release
from pbg_tasks.tasks.nightly.yardstick import best_release
from pbg_tasks.tasks.partitioning import partition_counts
from pbg_tasks.training.engine.choice import engine_name, on_gpu
from pbg_tasks.training.ranks.leases import useful_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config import GraphSpec, Limits
    from pbg_tasks.config.launch import KubernetesLaunch
    from pbg_tasks.config.limits import Check
    from pbg_tasks.memory.forecast import Forecast
    from pbg_tasks.tasks.partitioning import Expected

PLANNED = CHAIN[1:]
NIGHTS = 7
"""Most earlier nights that a forecast uses."""
_PREPARING = ("validate", "partition", "bucket")
_SHORT = 60.0  # seconds of a night whose tasks are not reported one by one
_BASE = 100_000_000  # bytes of a process that only moves documents: Python, pydantic, and a store's client


@dataclass(frozen=True, slots=True)
class Outlook:
    """Forecasts of a night.

    Attributes:
        memory: forecasts of peaks, by name, line by line.
        night: all tasks, with time, traffic and cost.
    """

    memory: dict[str, Forecast]
    night: NightForecast

    def say(self, budget_gb: float) -> None:
        """Report the forecasts as lines of text.

        A forecast of memory is itemised where it may get scarce, that of a night where it is not over in a minute; the
        result of ``plan`` has all figures. The preparation takes its budget by design.
        """
        for name, forecast in self.memory.items():
            if name != "preparation" and forecast.peak > budget_gb * 1e9 / 2:
                for line in forecast.table():
                    say(f"plan: {line}")
        bounds = {name: forecast.peak for name, forecast in self.memory.items() if name != "preparation"}
        peaks = ", ".join(f"{name} {human_count(peak)}B" for name, peak in bounds.items())
        preparing = max(self.night.tasks[task]["memory_bytes"].likely for task in _PREPARING)
        say(f"plan: memory at most, in a process each: {peaks}; preparation about {human_count(preparing)}B")
        train = self.memory["train"]
        if train.peak > budget_gb * 1e9:
            say(
                f"warning: train will take {human_count(train.peak)}B, more than resources.memory_gb "
                f"({budget_gb:g} GB); keys that change it: {', '.join(train.keys)}"
            )
        for line in self.night.table(itemised=self.night.seconds.likely > _SHORT):
            say(f"plan: {line}")


def in_one_process(written: GraphSpec) -> GraphSpec:
    """Return a spec all of whose tasks one process does.

    It has no ranks, pods or parts of an evaluation.
    """
    whole = written.eval.model_copy(update={"parts": 1})
    return written.model_copy(update={"launch": Launch(), "eval": whole})


def outlook(run: RunContext, expected: Expected, written: GraphSpec) -> Outlook:
    """Forecast a planned run.

    Args:
        run: that is planned.
        expected: counts of its snapshot.
        written: the graph spec with the keys that are no part of a run: prices, and how training is launched; its
            parts of an evaluation count, too.
    """
    graph, model = run.spec.graph, run.spec.graph.model
    cpus = usable_cpus()
    launch, pods = written.launch, written.launch.tasks
    gpu = on_gpu(graph.train.device, model, graph.train.engine)
    of_pods = _cpus_of(launch.kubernetes if launch.launcher != "local" else None)
    workers = 1 if gpu else model.workers or of_pods or cpus
    parts = written.eval.parts
    ranking = pods.get("eval" if parts == 1 else EVAL_PART) or pods.get("finish")
    threads = graph.resources.threads or _cpus_of(ranking) or cpus
    chosen = engine_name(graph.train.engine, model, graph.train.device)[0]
    held_out = int(expected.edges * graph.held_out_share)
    asked = min(held_out, graph.eval.max_edges or held_out)
    before = release_before(run)
    evaluating = partial(
        evaluation_forecast,
        graph,
        asked=asked,
        known=expected.edges,
        entities=sum(expected.entities.values()),
        compared=before is not None,
    )
    memory = {
        "train": expected.training(
            graph, partition_counts(model), workers=workers, engine=chosen, ranks=written.launch.ranks
        ),
        "eval": evaluating(),
        **({EVAL_PART: evaluating(part=True)} if parts > 1 else {}),
        "preparation": preparation_forecast(graph.resources),
    }
    best = best_release(run, before)
    engine = "gpu" if gpu else chosen
    work = Work(
        model=model,
        entities=expected.entities,
        edges=expected.edges,
        trained=int(expected.edges * (1 - graph.split.valid - graph.split.test)),
        # Most nights need no second round; parts count all edges.
        asked=asked if asked == held_out or parts > 1 else min(asked, ROUND_EDGES),
        candidates=graph.eval.max_candidates,
        epochs=run.spec.epochs,
        workers=max(1, min(model.num_gpus, useful_ranks(model))) if gpu else workers,
        threads=threads,
        engine=engine,
        warm=run.spec.previous is not None and run.spec.previous.warm_start,
        compared=before is not None,
        indexed=sum(count for count in expected.entities.values() if has_name_index(count)),
        best=(best is not None and (before is None or best.seq != before.seq)) or replaced_release(run) is not None,
        delta=run.spec.delta is not None,
        parts=parts,
    )
    peaks = dict.fromkeys(PLANNED, _BASE) | preparation_peaks(graph.resources, expected.edges)
    if work.indexed:
        peaks["preserve"] = indexing_peak(graph.resources, work.indexed)
    peaks |= {name: memory[name].peak for name in ("train", "eval", EVAL_PART) if name in memory}
    peaks["drift"] = memory["eval"].peak
    planned = modelled(work, memory=peaks)
    in_pods = launch.ranks > 1 and launch.launcher != "local"
    machines = launch.ranks + max(model.num_partition_servers, 0) if in_pods else 1
    night = forecast_night(
        planned,
        measured_nights(run, in_pods=in_pods),
        engine=engine,
        machines=machines,
        ranks=min(launch.ranks, useful_ranks(model)) if in_pods else 1,  # others wait
        costs=written.costs,
        kind=work.kind,
        parts=parts,
    )
    return Outlook(memory, night)


def _cpus_of(pod: KubernetesLaunch | None) -> int | None:
    """Return the CPUs of a task's pods.

    None where the task runs on this machine, or one like it.
    """
    return None if pod is None else max(1, math.ceil(amount(pod.resources["cpu"])))


def measured_nights(run: RunContext, *, in_pods: bool = False) -> list[MeasuredNight]:
    """Return forecasts and results of the graph's newest nights.

    The newest comes last.

    Args:
        run: of tonight.
        in_pods: whether its ranks have a machine each.
    """
    releases = Channel(run.store, run.spec.graph.channel).releases(newest_first=True)
    runs = islice((release.run for release in releases if release.run != run.run_id), NIGHTS)
    newest = list(dict.fromkeys(runs))[::-1]  # a run may have two releases
    found = in_parallel(lambda name: _measured(replace(run, run_id=name), in_pods=in_pods), newest, NIGHTS)
    return [night for night in found if night is not None]


def _measured(earlier: RunContext, *, in_pods: bool) -> MeasuredNight | None:
    """Return an earlier run's forecast and results.

    None if they cannot be read. The run's own spec is not needed.
    """
    try:
        results = {task: result for task, shape in SHAPES.items() if (result := earlier.find(shape)) is not None}
        parts = _parts(earlier)
    except FormatError as error:  # a forecast does without
        say(f"warning: {error}")
        return None
    if "train" in results and is_of_last_try(results["train"]):
        del results["train"]  # it measured only a part of the work, so forecasts from it would be too low
    plan = results.pop("plan", None)
    forecast = plan.forecast if isinstance(plan, PlanResult) else None
    useful = useful_ranks(earlier.spec.graph.model)  # of tonight's spec; nights keep their partitions
    return MeasuredNight.of_results(earlier.run_id, forecast, results, parts, useful=useful, in_pods=in_pods)


def _parts(run: RunContext) -> list[EvalPartResult]:
    """Return the results of the parts of a run's evaluation, if any."""
    prefix = run.key(RunLayout.result(f"{EvalResult.TASK}-")).removesuffix(".json")
    names = [info.key.rpartition("/")[2].removesuffix(".json") for info in run.store.list(prefix)]
    found = (run.find(EvalPartResult, name) for name in names if is_part_of(EvalResult.TASK, name))
    return [each for each in found if each is not None]


def enforce_limits(run: RunContext, limits: Limits, night: NightForecast) -> None:
    """Let a night begin, unless its forecast exceeds a blocking limit.

    Raises:
        QualityGateError: it does; nothing was spent on the night yet. Later nights go on without it.
    """
    verdict = Verdict(tuple(_judged(limits, night)))
    for check in verdict.checks:
        if check.warned:
            say(f"warning: {check.sentence}")
    if verdict.passed:
        return
    reasons = "; ".join(check.sentence for check in verdict.checks if not check.passed)
    if run.spec.accepted is not None:
        say(f"accepted ({run.spec.accepted}): {reasons}")
        return
    run.refuse(f"its forecast is beyond the spec's limits: {reasons}")
    blocking = " and ".join(f"limits.{check.name}" for check in verdict.checks if not check.passed)
    raise QualityGateError(
        f"run {run.url}: {reasons}; raise {blocking}, train less, or take it this once: plan it with --accept-data "
        "REASON"
    )


def _judged(limits: Limits, night: NightForecast) -> Iterator[Check]:
    seconds, cost = night.seconds, night.cost
    if limits.max_hours.asked:
        low, likely, high = map(human_seconds, seconds)
        sentence = f"the night is forecast to take {likely} ({low} to {high})"
        yield limits.max_hours.judge("max_hours", seconds.likely / 3600, sentence, "{:g} hours")
    if limits.max_cost.asked and cost is not None and night.costs is not None:
        currency = night.costs.currency
        sentence = f"the night is forecast to cost {cost.likely:.4g} {currency} ({cost.low:.4g} to {cost.high:.4g})"
        yield limits.max_cost.judge("max_cost", cost.likely, sentence, "{:g} " + currency)
