"""Alerts: calls of the spec's notifiers, as callbacks.

The occasions are nights that failed, were refused, were published or are late.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from pbg_operators.connection import with_store
from pbg_operators.deadline import PublishedBy
from pbg_operators.internals import AsyncCallback, DeadlineAlert
from pbg_operators.plan import publishes
from pbg_operators.task import ASKED_KEY, REFUSED_KEY, UNSENT_KEY, Refused
from pbg_tasks.config.alerts import Notifier
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.alerts import Occasion

FACTS = "pbg"
"""Name of an alert's facts in the templates of notifiers."""
WATCH_ALERT = 3
"""Number of the failed try of a watch after which people are alerted."""
THREADS = ThreadPoolExecutor(16, thread_name_prefix="pbg-late")
"""Threads of a triggerer's late alerts, which a hook that never answers keeps.

In the event loop's own, Jobs are watched, and deleted for a task that a user ends.
"""
log = logging.getLogger(__name__)


class Alert:
    """Call of a graph's notifiers for one kind of occasion."""

    def __init__(self, spec: GraphSpec, occasion: Occasion) -> None:
        self._graph, self._occasion = spec.graph, occasion
        self._notifiers = tuple(notifier for notifier in spec.nights.notify if occasion in notifier.on)

    def __call__(self, context: Mapping[str, Any], text: str | None = None) -> bool:
        """Call the notifiers, as Airflow calls its callbacks.

        Args:
            context: of the task or run.
            text: description of the occasion, in a sentence; made of the context unless given.

        Returns:
            Whether none of them failed.
        """
        called = self._called(context)
        return notify(called, context, graph=self._graph, occasion=self._occasion, text=text or _text(context))

    def _called(self, context: Mapping[str, Any]) -> tuple[Notifier, ...]:
        """Return the notifiers to call.

        Of a failure that is a refusal, those with ``refused`` have had an alert.
        """
        if self._occasion != "failed" or not _was_reported(context):
            return self._notifiers
        return tuple(notifier for notifier in self._notifiers if "refused" not in notifier.on)


def _was_reported(context: Mapping[str, Any]) -> bool:
    """Return whether a failure is a refusal whose alert was sent.

    A gate that asks sends it before it asks; that the answer was no, or never came, is another occasion. An alert that
    failed to be sent gets another try as that of the failure.
    """
    task, run = context.get("task"), context.get("ti")
    if run is None or getattr(task, "refused", None) is None:
        return False
    if "exception" in context:  # the callback of a task
        return isinstance(context["exception"], Refused) and not context["exception"].unsent
    of_task = {"task_ids": run.task_id, "map_indexes": run.map_index}
    try:
        keys = (REFUSED_KEY, ASKED_KEY, UNSENT_KEY)
        refused, asked, unsent = (run.xcom_pull(key=key, **of_task) is not None for key in keys)
    except Exception:  # any failure, as two alerts are better than none
        log.exception("the XComs of task %s cannot be read", run.task_id)
        return False
    return refused and not asked and not unsent


def notify(notifiers: Iterable[Notifier], context: Mapping[str, Any], **facts: str) -> bool:
    """Call notifiers; one that fails is logged.

    A failure affects neither the other notifiers nor the night. Returns whether there was none.
    """
    failed = False
    for notifier in notifiers:
        module, _, name = notifier.use.rpartition(".")
        try:
            getattr(import_module(module), name)(**notifier.arguments)({**context, FACTS: facts})
        except Exception:  # any failure, which must not become one of the night
            log.exception("notifier %s failed: %s", notifier.use, facts)
            failed = True
    return not failed


def tell_late(
    context: Mapping[str, Any],
    graph: str,
    at: str,
    notifiers: list[dict[str, Any]],
    place: Mapping[str, str] | None = None,
) -> None:
    """Report a deadline that has passed, unless nothing was to be published.

    Airflow drops the deadline of a run that ends well, not that of one which a user marks as a success, nor of one that
    failed and in whose place a user began another. Airflow's executor calls this for runs that began before an upgrade
    to ``report_late``.

    Args:
        context: of the run.
        graph: its graph.
        at: time of the day.
        notifiers: to call.
        place: store, channel and connection of the releases; None for runs that began before an upgrade.
    """
    run = context["dag_run"]
    form = run.get("conf") or {}
    if run.get("state") == "success" or not publishes(form):
        return
    snapshot = run.get("partition_key") or form.get("snapshot")
    if run.get("state") == "failed" and place and _is_released(snapshot, **place):
        log.info("run %s failed, and its snapshot is released", run["dag_run_id"])
        return
    text = f"{run['dag_id']}: {run.get('partition_key') or run['dag_run_id']} was not published by {at}"
    notify(map(Notifier.model_validate, notifiers), context, graph=graph, occasion="late", text=text)


def _is_released(snapshot: str | None, store: str, channel: str, connection: str) -> bool:
    """Return whether a channel has a release of a snapshot.

    Where it cannot be read, it counts as not released: the alert is sent.
    """
    from pbg_tasks.publish import Channel  # not by schedulers
    from pbg_tasks.storage import open_store

    try:
        there = Channel(open_store(store, environment=with_store(dict(os.environ), connection)), channel)
        return any(release.snapshot == snapshot for release in there.releases(newest_first=True))
    except Exception:  # any failure, as an alert too many is better than none
        log.exception("the releases of channel %s of %s cannot be read", channel, store)
        return False


async def report_late(context: Mapping[str, Any], *given: Any, **facts: Any) -> None:  # noqa: ANN401 - as of tell_late
    """Report a deadline that has passed, from Airflow's triggerer.

    What executors call for deadlines may not read connections of Airflow's database, up to 3.3.2 at least. Notifiers
    block, so they run in ``THREADS``; their lines go to the trigger's log.

    Args:
        context: of the run.
        given: further arguments of ``tell_late``.
        facts: same, by name.
    """
    await sync_to_async(tell_late, thread_sensitive=False, executor=THREADS)(context, *given, **facts)


def on_failure(spec: GraphSpec) -> dict[str, Any]:
    """Return the arguments of a DAG for alerts of its failed runs."""
    return {"on_failure_callback": Alert(spec, "failed")}


def of_failed_task(spec: GraphSpec, others: Any) -> dict[str, Any]:  # noqa: ANN401 - BaseOperator's
    """Return the arguments of tasks for alerts of their failures.

    They stand for those of a DAG that is not made here.

    Args:
        spec: of the graph.
        others: callbacks of failed tasks that are there, one or several.
    """
    if not any("failed" in notifier.on for notifier in spec.nights.notify):
        return {}
    there = list(others) if isinstance(others, Collection) else [others] * (others is not None)
    return {"on_failure_callback": [Alert(spec, "failed"), *there]}


def on_lasting_failure(spec: GraphSpec) -> dict[str, Any]:
    """Return the arguments of a task for one alert of repeated failures."""
    alert = Alert(spec, "failed")

    def notify_once(context: Mapping[str, Any]) -> None:
        run = context["ti"]
        before = run.max_tries - context["task"].retries  # a task that was cleared goes on counting its tries
        is_cleared = 0 < before < run.try_number  # else the spec may have other retries since
        if run.try_number - (before if is_cleared else 0) == WATCH_ALERT:
            alert(context)

    return {"on_retry_callback": notify_once}


def deadline(spec: GraphSpec) -> dict[str, Any]:
    """Return the arguments of a nightly DAG for alerts of late releases."""
    asked = spec.nights.deadline
    if asked is None:
        return {}
    notifiers = [notifier.model_dump(mode="json") for notifier in spec.nights.notify if "late" in notifier.on]
    place = {"store": spec.store, "channel": spec.channel, "connection": spec.airflow.connection}
    facts = {"graph": spec.graph, "at": asked.at, "notifiers": notifiers, "place": place}
    callback = AsyncCallback(report_late, kwargs=facts)
    reference = PublishedBy(asked.at, asked.timezone)
    return {"deadline": DeadlineAlert(reference, timedelta(0), callback, name=f"published by {asked.at}")}


def check_notifiers(spec: GraphSpec, spec_path: Path) -> None:
    """Refuse notifiers of packages that are not installed, or fail.

    Otherwise the first failing night would reveal it. The packages above a module are imported. One that fails, as
    Airflow's providers do beside an older Airflow, must not take away the DAGs of other graphs.

    Raises:
        ConfigError: a module is missing, or a package above it fails; the message names file, key and module.
    """
    for module in (notifier.use.rpartition(".")[0] for notifier in spec.nights.notify):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        except Exception as error:  # noqa: BLE001 - of any package
            raise ConfigError(f"{spec_path}: nights.notify: module {module} cannot be imported: {error!r}") from None
        if found is None:
            raise ConfigError(f"{spec_path}: nights.notify: module {module} is not installed")


def _text(context: Mapping[str, Any]) -> str:
    """Return a sentence on a run or task from a callback's context."""
    dag, run_id = context["dag"].dag_id, context["run_id"]
    key = getattr(context.get("dag_run"), "partition_key", None)  # Airflow leaves the run out where no task is known
    reason = context.get("exception") or context.get("reason")
    return f"{dag}: " + (f"{key} ({run_id})" if key else run_id) + (f": {reason}" if reason else "")
