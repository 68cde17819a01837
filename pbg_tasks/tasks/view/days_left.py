"""Days after the newest release: refused, skipped or broken ones."""

from __future__ import annotations

from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import SHAPES, PublishResult
from pbg_tasks.errors import AccessError, ConfigError, FormatError, QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.channel import all_channel_names
from pbg_tasks.publish.skips import skipped, why_skipped
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.approval import GATED, decisions
from pbg_tasks.tasks.context import RunContext, chain_task
from pbg_tasks.tasks.failure import failure_key, plan_failures, read_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pbg_tasks.storage import ObjectInfo, Store
    from pbg_tasks.tasks.view.summary import FailedNight, ReleaseRow

_AT_ONCE = 16


def without_release(channel: Channel, rows: Sequence[ReleaseRow]) -> dict[str, str]:
    """Return why days after the newest release have none.

    Args:
        channel: of the nights.
        rows: its releases.
    """
    reasons = skipped(channel)
    days = [day for day in sorted(reasons, key=snapshot_order) if _is_after(day, rows)]
    runs = _planned(channel.store.list("runs/")) if days else {}
    failures = {day: failure.reason for (_, day), failure in plan_failures(channel.store, channel.name).items()}
    return {
        day: reasons[day]
        + _approved_since(channel, day, runs.get(day, ()))
        + _unplanned_since(reasons[day], failures.get(day))
        for day in days
    }


def _approved_since(channel: Channel, day: str, runs: Sequence[str]) -> str:
    """Return that a run was approved, as a part of a sentence.

    An approval of a gate covers no other task, such as a ``bucket`` that found nothing to hold out afterwards.
    """
    night = _first_of(channel, runs)
    if night is None or _refused_without_gate(channel.store, night.run_id):
        return ""
    with suppress(FormatError):  # damaged
        for decision in decisions(night):
            if decision["approved"]:
                again = f"`pbg run SPEC {day}` with its options goes on with it"
                return f"; approved since by {decision['by']}, so that {again}"
    return ""


def _refused_without_gate(store: Store, run: str) -> bool:
    """Return whether a task that is no gate refused the run last.

    ``publish`` repeats the refusal of a gate.
    """
    found = read_failure(store, run)
    if found is None or found[0].kind != QualityGateError.kind:
        return False
    return chain_task(found[0].task) not in {*GATED, PublishResult.TASK}


def _unplanned_since(reason: str, failure: str | None) -> str:
    """Return that a day could not be planned since, within a sentence.

    A plan that succeeds takes the failure back, so one that is there is newer than a refusal.
    """
    return "" if failure is None or failure in reason else f"; planned again since, which failed: {failure}"


def _is_after(day: str, rows: Sequence[ReleaseRow]) -> bool:
    """Return whether a day is after all releases."""
    return all(snapshot_order(day) > snapshot_order(row["snapshot"]) for row in rows)


def after_release(nights: Sequence[FailedNight], rows: Sequence[ReleaseRow]) -> list[FailedNight]:
    """Return the nights that come after the newest of some releases."""
    return [night for night in nights if _is_after(night["snapshot"], rows)]


def broken_nights(store: Store, graph: str | None = None, below: str = "runs/") -> dict[str, list[FailedNight]]:
    """List the nights that broke, by channel, oldest first.

    Those that were refused or skipped are left out: later nights go on without them.
    Of a channel's nights of a snapshot the one planned last counts, and one that could not be planned before all.
    Trials, which are no nights, have no mark of their plan.

    Args:
        store: of the nights.
        graph: None: of all graphs.
        below: prefix of the keys of the runs; others are not read.
    """
    stored = list(store.list(below))
    listed, planned = {info.key for info in stored}, _planned(stored)
    tries = [(day, at) for day, runs in planned.items() for at, run in enumerate(runs) if failure_key(run) in listed]
    found = _unplanned_nights(store, graph)
    unplanned = {(channel, row["snapshot"]) for channel, rows in found.items() for row in rows}

    def broken(each: tuple[str, int]) -> tuple[str, FailedNight] | None:
        snapshot, at = each
        run, later = planned[snapshot][at], planned[snapshot][:at]
        with suppress(ConfigError, FormatError):  # removed meanwhile, or damaged
            night = RunContext.within(store, run)
            channel = Channel(store, night.spec.graph.channel)
            failed = night.failure({task for task in SHAPES if night.key(RunLayout.result(task)) in listed})
            goes_on_without = why_skipped(channel, snapshot, since=night.planned()) is not None
            is_listed = goes_on_without or (channel.name, snapshot) in unplanned
            is_other = is_listed or graph not in {None, night.spec.graph.graph}
            if failed is not None and not is_other and _first_of(channel, later) is None:
                return channel.name, {"snapshot": snapshot, "run": run, "failed": failed}
        return None

    for name, row in filter(None, in_parallel(broken, tries, _AT_ONCE)):
        found.setdefault(name, []).append(row)
    return {channel: sorted(rows, key=_order) for channel, rows in found.items()}


def why_broken(channel: Channel, graph: str, snapshot: str) -> str | None:
    """Return a night's failure as the reason of its skip.

    None without one, and for a role that may not read it.
    """
    with suppress(AccessError):
        for night in broken_nights(channel.store, graph, f"runs/{snapshot}-").get(channel.name, []):
            if night["snapshot"] == snapshot:
                return f"skipped by hand after {night['failed']['task']} failed: {night['failed']['reason']}"
    return None


def _order(night: FailedNight) -> tuple[object, str]:
    return snapshot_order(night["snapshot"])


def _unplanned_nights(store: Store, graph: str | None) -> dict[str, list[FailedNight]]:
    """List the nights that could not be planned, by channel."""
    found: dict[str, list[FailedNight]] = {}
    for name in all_channel_names(store):
        for (of, snapshot), failure in plan_failures(store, name).items():
            if graph in {None, of} and why_skipped(Channel(store, name), snapshot) is None:
                row: FailedNight = {"snapshot": snapshot, "run": None, "failed": failure.told()}
                found.setdefault(name, []).append(row)
    return found


def _planned(stored: Iterable[ObjectInfo]) -> dict[str, list[str]]:
    """Return the runs of each snapshot, the last planned first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for info in stored:
        _, run, name = [*info.key.split("/", 2), ""][:3]
        if name == RunLayout.planned:
            found.setdefault(run.rpartition("-")[0], []).append((info.modified or 0.0, run))
    last_first = {snapshot: sorted(runs, reverse=True) for snapshot, runs in found.items()}
    return {snapshot: [*map(itemgetter(1), runs)] for snapshot, runs in last_first.items()}


def _first_of(channel: Channel, runs: Sequence[str]) -> RunContext | None:
    """Return the first of some runs that is of a channel.

    Graphs of one store have a channel each, and may have one snapshot key.
    """
    for run in runs:
        with suppress(ConfigError, FormatError):  # removed meanwhile, or damaged
            night = RunContext.within(channel.store, run)
            if night.spec.graph.channel == channel.name:
                return night
    return None
