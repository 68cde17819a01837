"""Standing of a graph tonight, and nights that failed."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pbg_tasks.report.comparison import duration
from pbg_tasks.report.figures import STOPPED
from pbg_tasks.report.history import early_night, night_order
from pbg_tasks.report.numbers import moment, rough

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.report.documents import (
        AttemptRow,
        HistoryDocument,
        Need,
        Night,
        ReaderPart,
        RunDocument,
        ScheduleRow,
        StandingDocument,
        TaskRow,
        TaskState,
        Tone,
    )

NO_REASON = "no reason was recorded; the log of the task has it"
_OPEN = ("running", "failed")
"""States by the store in which Airflow may know more of a run."""
_AT_WORK = ("queued", "running")
"""States of attempts that have not ended."""
_AFTER = 60.0
"""Seconds after the end of an attempt, by another clock, from which the store knows more of a run than Airflow."""
_SILENCE = 2 * 3600.0
"""Least time without news after which a run by hand counts as killed; ``_LATE`` forecasts where that is longer."""
_LATE = 2.5
"""Age of a release, in usual pauses between two, from which a graph is late."""
_LONGER = 1.25
"""Same, in longest pauses of late, without one that may have been an outage."""
_RECENT = 14
"""Number of last pauses that count: nights of a backfill come close together, and some calendars rest at weekends."""
_USUAL = 3
"""Least number of pauses from which a usual one is known."""
_RANKS: dict[Tone, int] = {"bad": 0, "warn": 1, "busy": 2, "good": 3, "idle": 4}


def with_failure(run: RunDocument, attempts: Sequence[AttemptRow], now: float | None = None) -> RunDocument:
    """Return a run's document with the failure of its last attempt.

    The store has the error of a task that ended with one; only Airflow knows of a task that was killed, or whose
    process never began. A run that went on since, by hand, is as the store has it, while there is news of it.

    Args:
        run: the document as the store has it.
        attempts: of the graph, the newest first.
        now: seconds since 1970; None: not known.
    """
    last = next((each for each in attempts if each["run"] == run["url"]), None)
    log = last["log"] if last is not None else None
    if last is not None and _went_on(run["begun"], last):
        forecast = run["forecast"]["expected_seconds"] if run["forecast"] else None
        by_hand = run["state"] == "running" and not _is_at_work(run["run"], attempts)
        silence = _silence(run["begun"], forecast, now) if by_hand else None
        return {**run, "log": None} if silence is None else _fallen_silent(run, silence)
    if run["state"] not in _OPEN or last is None or last["state"] != "failed":
        return {**run, "log": log if run["state"] in STOPPED else None}
    named = (last["task"] or "").rpartition(".")[2]
    # A task of Airflow may do several of the chain; the store knows which of them failed.
    stopped = named if any(task["name"] == named for task in run["tasks"]) else run["stopped"] or named
    left: dict[str, TaskState] = {"now": "waiting", "failed": "waiting"}
    tasks: list[TaskRow] = [
        {**task, "state": "failed" if task["name"] == stopped else left.get(task["state"], task["state"])}
        for task in run["tasks"]
    ]
    return {
        **run,
        "state": "failed",
        "reason": last["reason"] or run["reason"] or NO_REASON,
        "stopped": stopped or None,
        "log": log,
        "tasks": tasks,
    }


def _went_on(begun: float | None, attempt: AttemptRow) -> bool:
    """Return whether a run was begun again after an attempt had ended."""
    return begun is not None and attempt["ended"] is not None and begun > attempt["ended"] + _AFTER


def _is_at_work(run: str, attempts: Sequence[AttemptRow]) -> bool:
    """Return whether an attempt at a run is under way in Airflow.

    Its next task may wait for hours, for a worker or a node.
    """
    return any(each["state"] in _AT_WORK and (each["run"] or "").rpartition("/")[2] == run for each in attempts)


def _silence(begun: float | None, forecast: float | None, now: float | None) -> str | None:
    """Return why a run counts as killed; None while it does not.

    Its process left none if it was killed.
    """
    longest = max(_SILENCE, _LATE * (forecast or 0.0))
    if begun is None or now is None or now - begun < longest:
        return None
    return (
        f"it went on outside of Airflow, without news since {moment(begun)} UTC; if its process was killed, `pbg run` "
        "goes on with it"
    )


def _fallen_silent(run: RunDocument, reason: str) -> RunDocument:
    """Return the document of a run by hand that was killed."""
    left: dict[str, TaskState] = {"now": "failed"}
    tasks: list[TaskRow] = [{**task, "state": left.get(task["state"], task["state"])} for task in run["tasks"]]
    stopped = next((task["name"] for task in tasks if task["state"] == "failed"), None)
    return {**run, "state": "failed", "reason": reason, "stopped": stopped, "log": None, "tasks": tasks}


def with_failures(
    history: HistoryDocument, attempts: Sequence[AttemptRow], now: float | None = None
) -> HistoryDocument:
    """Return the document of a channel with the nights that failed.

    A night that failed before it had a run has a row of its own, unless a later one of its snapshot got further. Where
    the store has the error of its plan, too, the later of the two counts.

    Args:
        history: the document as the store has it.
        attempts: of the graph, the newest first.
        now: seconds since 1970; None: not known.
    """
    last: dict[str, AttemptRow] = {}
    for each in reversed(attempts):
        if each["run"]:
            last[each["run"].rpartition("/")[2]] = each
    nights: list[Night] = []
    early: dict[str, Night] = {}
    for night in history["nights"]:
        if not night["run"]:
            early[night["snapshot"]] = night
            continue
        found = last.get(night["run"])
        gone_on = found is not None and _went_on(night["begun"], found)
        by_hand = gone_on and night["state"] == "running" and not _is_at_work(night["run"], attempts)
        silence = _silence(night["begun"], night["forecast"], now) if by_hand else None
        if silence is not None:
            night = {**night, "state": "failed", "reason": silence}  # noqa: PLW2901 - the same night
        elif found is not None and found["state"] == "failed" and not gone_on and night["state"] in _OPEN:
            told = found["reason"] or night["reason"] or NO_REASON
            night = {**night, "state": "failed", "reason": told, "page": found["page"]}  # noqa: PLW2901 - the same night
        nights.append(night)
    for each in attempts:
        stored = early.get(each["snapshot"] or "")
        if stored is not None and each["state"] != "failed" and (each["began"] or 0.0) > (stored["planned"] or 0.0):
            del early[stored["snapshot"]]  # tried again since
    for night in _without_run(attempts, nights):
        stored = early.get(night["snapshot"])
        is_later = stored is not None and (stored["planned"] or 0.0) > (night["planned"] or 0.0)
        early[night["snapshot"]] = {**stored, "page": night["page"]} if stored is not None and is_later else night
    return {**history, "nights": sorted([*nights, *early.values()], key=night_order)}


def _without_run(attempts: Sequence[AttemptRow], nights: Sequence[Night]) -> list[Night]:
    """Return the nights that failed before they had a run."""
    seen: set[str | None] = set()
    found: list[Night] = []
    planned = {night["snapshot"]: night["planned"] or 0.0 for night in nights}
    for each in attempts:
        snapshot = each["snapshot"]
        is_last, later = snapshot not in seen, planned.get(snapshot or "", 0.0) > (each["began"] or 0.0)
        seen.add(snapshot)
        if each["run"] is None and each["state"] == "failed" and is_last and not later:
            found.append(
                early_night(snapshot or "no snapshot", each["reason"] or NO_REASON, each["began"], each["page"])
            )
    return found


def standing_document(
    history: HistoryDocument,
    attempts: Sequence[AttemptRow],
    schedules: Sequence[ScheduleRow],
    *,
    page: str,
    run: RunDocument | None,
    now: float,
) -> StandingDocument:
    """Return how a graph stands tonight, in one row.

    Args:
        history: of its channel, with its failures.
        attempts: of the graph, the newest first.
        schedules: of the DAGs that begin its nights.
        page: address of its nights.
        run: document of the last night; None where that has no run.
        now: seconds since 1970.
    """
    night = last_night(history)
    released = [each for each in history["nights"] if each["release"] is not None]
    current = next((each for each in released if each["current"]), None)
    needs = [*_asked(attempts), *_stopped(night), *_late(released, current, night, now), *_paused(schedules)]
    tone = _tone(needs, night)
    return {
        "kind": "standing",
        "graph": history["graph"],
        "channel": history["channel"],
        "page": page,
        "tone": tone,
        "rank": _RANKS[tone],
        "needs": needs,
        "night": night,
        "doing": _doing(run) if run is not None else None,
        "forecast": run["forecast"]["expected_seconds"] if run is not None and run["forecast"] else None,
        "took": duration(run) if run is not None else None,
        "current": current,
        "age": now - current["published"] if current is not None and current["published"] else None,
        "next": _next(schedules),
        "readers": [each for each in history["readers"] if not _follows(each, history["channel"])],
    }


def last_night(history: HistoryDocument) -> Night | None:
    """Return the night that was planned last; None before the first."""
    planned = [each for each in history["nights"] if each["planned"] is not None]
    return max(planned, key=lambda each: each["planned"] or 0.0, default=None)


def _follows(reader: ReaderPart, channel: str) -> bool:
    """Return whether a reader is the whole channel itself."""
    return reader["share"] == 1 and reader["reader"] == reader["channel"] == channel


def _asked(attempts: Sequence[AttemptRow]) -> list[Need]:
    return [
        {
            "tone": "bad",
            "text": f"{each['snapshot'] or 'A night'} waits for an answer: approve or reject what its gate refused.",
            "page": each["answers"],
            "airflow": True,
        }
        for each in attempts
        if each["awaiting"] and each["state"] not in {"success", "failed"}
    ]


def _stopped(night: Night | None) -> list[Need]:
    if night is None or night["state"] not in STOPPED:
        return []
    text = f"{night['snapshot']} {night['state']}: {night['reason']}"
    return [{"tone": "bad", "text": text, "page": night["page"], "airflow": False}]


def _late(released: Sequence[Night], current: Night | None, night: Night | None, now: float) -> list[Need]:
    times = sorted(each["published"] for each in released if each["published"])
    pauses = [later - earlier for earlier, later in pairwise(times)]
    if current is None or len(pauses) < _USUAL or (night is not None and night["state"] == "running"):
        return []
    recent = sorted(pauses[-_RECENT:])
    usual, age = median(recent), now - times[-1]
    if age < max(_LATE * max(usual, 3600.0), _LONGER * recent[-2]):
        return []
    text = f"No release for {rough(age)}, where one comes every {rough(usual)}."
    return [{"tone": "warn", "text": text, "page": None, "airflow": False}]


def _paused(schedules: Sequence[ScheduleRow]) -> list[Need]:
    if not schedules or not all(each["paused"] for each in schedules):
        return []
    return [{"tone": "warn", "text": "Its DAGs are paused, so no night begins.", "page": None, "airflow": False}]


def _tone(needs: Sequence[Need], night: Night | None) -> Tone:
    if needs:
        return min((each["tone"] for each in needs), key=_RANKS.__getitem__)
    if night is None:
        return "idle"
    return "busy" if night["state"] == "running" else "good"


def _doing(run: RunDocument) -> str | None:
    """Return what a run is at, in some words."""
    training = run["training"]
    if run["state"] != "running":
        return None
    if training["state"] == "running":
        done = f"{training['done']} of {training['buckets']} buckets"
        return f"training, epoch {training['epoch']} of {training['epochs']}, {done}"
    return next((task["name"] for task in run["tasks"] if task["state"] == "now"), None)


def _next(schedules: Sequence[ScheduleRow]) -> str:
    active = [each for each in schedules if not each["paused"]]
    times = [each["at"] for each in active if each["at"] is not None]
    if times:
        return f"{moment(min(times))} UTC"
    return "at an event, or by hand" if active else "paused"
