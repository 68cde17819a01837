"""``SnapshotTrigger`` and ``WatchOperator``: begin a night for each new snapshot."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseOperator, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from pbg_operators.connection import with_store
from pbg_operators.task import RetryableError
from pbg_tasks.errors import AccessError, PbgError, StorageError
from pbg_tasks.tasks.nightly.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import NoReturn

    from airflow.sdk import Asset, Context, XComArg
    from pydantic import JsonValue

    from pbg_tasks.config.nights import Watch, Whole
    from pbg_tasks.tasks.nightly.watermark import WatermarkDocument

WATERMARK = "watermark"
"""Key of the asset's state with the snapshots that were announced."""
THREADS = ThreadPoolExecutor(16, thread_name_prefix="pbg-watch")
"""Threads of all watches of a triggerer, which wait minutes for a store that hangs.

In the event loop's own, Jobs are deleted for a task that a user ends. Airflow waits half a minute for that.
"""


class Arrived(TypedDict, total=False):
    """Event of the trigger: new snapshots in their order, or an error.

    ``passed`` has those that a watch without a memory left out, as ``Arrivals.passed`` does.
    """

    snapshots: list[str]
    passed: list[str]
    error: str


class SnapshotTrigger(BaseTrigger):
    """List a location until it holds whole snapshots that are new.

    New ones were not announced yet. The trigger keeps no state that the next triggerer would miss: the announced
    snapshots are an argument, and the whole ones are in the store. Listing blocks, so it is done in ``THREADS``.

    Args:
        conn_id: Airflow connection of the store; without one, the triggerer's environment counts.
        location: of the snapshots, with ``{snapshot}``.
        complete: sign that a snapshot is whole, as in ``nights.watch``.
        quiet_seconds: for how long a snapshot's files have to stay the same, for ``settled``.
        every_seconds: between looks.
        watermark: as ``Watermark.to_json`` wrote it; None when the watch begins.
        chain: as for ``WatchOperator``.
        table: as for ``WatchOperator``.
    """

    def __init__(
        self,
        *,
        conn_id: str | None,
        location: str,
        complete: Whole,
        quiet_seconds: float,
        every_seconds: float,
        watermark: WatermarkDocument | None,
        chain: Sequence[str] | None = None,
        table: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        self.conn_id, self.location = conn_id, location
        self.complete = complete
        self.quiet_seconds, self.every_seconds = quiet_seconds, every_seconds
        self.watermark = watermark
        self.chain, self.table = chain, table

    def serialize(self) -> tuple[str, dict[str, JsonValue]]:
        """Return the data from which another process makes the same trigger."""
        names = ("conn_id", "location", "complete", "quiet_seconds", "every_seconds", "watermark", "chain", "table")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: the snapshots in their order, or an error.

        The error is why they cannot be listed, such as a connection of another type.
        """
        event: Arrived
        try:
            event = await self._arrived()
        except PbgError as error:
            event = {"error": f"{error.kind}: {error}"}
        except (AirflowFailException, AirflowNotFoundException) as error:
            # Of the connection; raised here, Airflow would hide it from the task.
            event = {"error": str(error)}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call] # Airflow's

    async def _arrived(self) -> Arrived:
        # These imports load an AWS SDK, which the triggerer needs and the parsing of DAGs does not.
        from pbg_tasks.publish import Channel
        from pbg_tasks.storage import open_store
        from pbg_tasks.tasks.nightly.arrivals import Arrivals

        # Airflow answers a thread's request for a connection only where it knows the loop from which the thread comes.
        environment = await sync_to_async(with_store)(dict(os.environ), self.conn_id)
        arrivals = Arrivals(self.location, self.complete, self.quiet_seconds, environment, say=self.log.info)
        if self.chain is not None:
            store, channel = self.chain
            arrivals.chain = Channel(open_store(store, environment=environment), channel)
        if self.table is not None:
            from pbg_tasks.config import Snapshots
            from pbg_tasks.prepare.sources import lists_files, snapshot_source

            snapshots = Snapshots.model_validate({"location": self.location, **self.table})
            arrivals.table = None if lists_files(snapshot_source(snapshots)) else snapshots
        watermark = None if self.watermark is None else Watermark.from_json(self.watermark)
        passed: list[str] | None = None
        while True:
            try:
                if passed is None:
                    passed = await _in_thread(arrivals.passed, watermark)
                    if passed:
                        watermark = (watermark or Watermark(passed[0])).passing(passed)
                        self.log.info("left out, up to the newest release: %s to %s", passed[0], passed[-1])
                if found := await _in_thread(arrivals.look, watermark):
                    return {"snapshots": found, "passed": passed} if passed else {"snapshots": found}
            except AccessError:
                raise
            except StorageError as error:
                self.log.warning("%s; looking again in %g s", error, self.every_seconds)
            await asyncio.sleep(self.every_seconds)


async def _in_thread(look: Callable[[Watermark | None], list[str]], watermark: Watermark | None) -> list[str]:
    """Return what a look finds; its lines go to the trigger's log."""
    return await sync_to_async(look, thread_sensitive=False, executor=THREADS)(watermark)


class WatchOperator(BaseOperator):
    """Wait, without a worker's slot, for new snapshots.

    The asset gets one partition event for each. The events are sent with the success of this task, and only then the
    next task moves the watermark. So a crash in between announces a snapshot twice, which the store makes harmless, and
    each is announced. Airflow drops an event for a DAG that is paused; ``reembed_{graph}`` is not paused unless a user
    pauses it.

    Args:
        location: of the snapshots, with ``{snapshot}``.
        watch: the spec's ``nights.watch``.
        begin: the first snapshot that counts; None: the newest whole one when the watch begins, or in a chain the one
            after the newest release.
        chain: store and channel, where each night continues the one before: snapshots are announced one at a time, the
            oldest first, and none before those it waits for. None: all at once.
        asset: the edges; its state holds the watermark.
        table: keys ``format`` and ``options`` of the spec's snapshots, where these may be versions of a table; None:
            they are files.
        store_conn_id: as for ``PbgOperator``.
    """

    ui_color = "#fef7e0"

    def __init__(
        self,
        *,
        location: str,
        watch: Watch,
        begin: str | None,
        chain: Sequence[str] | None,
        asset: Asset,
        table: Mapping[str, JsonValue] | None = None,
        store_conn_id: str | None = "pbg_s3",
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's own arguments
    ) -> None:
        super().__init__(outlets=[asset], **kwargs)
        self.location, self.watch = location, watch
        self.begin, self.chain = begin, chain
        self.asset, self.table = asset, table
        self.store_conn_id = store_conn_id

    def execute(self, context: Context) -> NoReturn:
        """Hand over to the triggerer.

        Raises:
            TaskDeferred: always.
        """
        known = watermark_of(context["asset_state_store"].get(WATERMARK), self.begin)
        trigger = SnapshotTrigger(
            conn_id=self.store_conn_id,
            location=self.location,
            complete=self.watch.complete,
            quiet_seconds=self.watch.quiet_minutes * 60,
            every_seconds=self.watch.every_seconds,
            watermark=None if known is None else known.to_json(),
            chain=self.chain,
            table=self.table,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Arrived) -> list[str]:
        """Announce the snapshots that the trigger found.

        Returns:
            Those that it left out, and these; the next task remembers both.

        Raises:
            RetryableError: the location cannot be listed.
        """
        if "error" in event:
            raise RetryableError(event["error"])
        found = event["snapshots"][: None if self.chain is None else 1]
        self.log.info("announced: %s", ", ".join(found))
        context["outlet_events"][self.asset].add_partitions(found)
        return [*event.get("passed", []), *found]


def watermark_of(stored: Any, begin: str | None) -> Watermark | None:  # noqa: ANN401 - any JSON value
    """Return the watermark of the watch.

    It is the stored one, else the beginning of the watch, if that is known.
    """
    if stored:
        return Watermark.from_json(stored)
    return None if begin is None else Watermark(begin)


def remember_task(asset: Asset, begin: str | None, announced: XComArg) -> XComArg:
    """Make the task that moves the watermark past announced snapshots.

    The task returns the new watermark.
    """

    @task(inlets=[asset])
    def remember(announced: list[str]) -> dict[str, JsonValue]:
        state = get_current_context()["asset_state_store"]
        known = watermark_of(state.get(WATERMARK), begin) or Watermark(announced[0])
        watermark = known.passing(announced).to_json()
        moved: dict[str, JsonValue] = {"begin": watermark["begin"], "announced": [*watermark["announced"]]}
        state.set(WATERMARK, moved)
        return moved

    return remember(announced)  # type: ignore[arg-type] # known only when the other task has run
