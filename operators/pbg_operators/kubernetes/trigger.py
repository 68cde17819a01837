"""``TrainJobTrigger``: waits for a gang's Job without a worker's slot."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from pbg_operators.kubernetes.api import Cluster, DoubtfulError
from pbg_operators.kubernetes.submission import Handle
from pbg_operators.kubernetes.watch import Watch
from pbg_tasks.errors import BY_KIND, PbgError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

DEFERRED = "deferred"
"""State, to Airflow, of a task that a triggerer waits for."""
DOUBT = "doubt"
"""Key of an event whose error is a ``DoubtfulError``, which has the kind of another one."""
LOOKS = ThreadPoolExecutor(16, thread_name_prefix="pbg-jobs")
"""Threads that look at the Jobs of all tasks. Calls of a user's kill are made in the event loop's own, as Airflow waits
half a minute for them.
"""


class TrainJobTrigger(BaseTrigger):
    """Watch a Job until it has ended, and copy its ranks' output.

    A user's kill deletes the Job. Calls to the API block, so they run in threads; between them only the event loop has
    the trigger in memory.

    Args:
        conn_id: Airflow connection of the cluster.
        namespace: of the Job.
        handle: of the Job, as ``Handle.to_json`` wrote it.
        startup_seconds: how long its pods may take to start.
        interval: seconds between looks.
    """

    def __init__(
        self, *, conn_id: str, namespace: str, handle: dict[str, Any], startup_seconds: int, interval: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        self.conn_id, self.namespace = conn_id, namespace
        self.handle = handle
        self.startup_seconds, self.interval = startup_seconds, interval
        self._watch: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the data from which another process makes the same trigger."""
        arguments = {
            "conn_id": self.conn_id,
            "namespace": self.namespace,
            "handle": self.handle,
            "startup_seconds": self.startup_seconds,
            "interval": self.interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event about the end of the Job."""
        try:
            error = await self._wait()
        except PbgError as raised:
            error = raised
        yield TriggerEvent(event_of(error))  # type: ignore[no-untyped-call] # Airflow's

    async def on_kill(self) -> None:
        """Delete the Job; the ranks store their progress while their pods end.

        Airflow, up to 3.3.2 at least, also calls this in a triggerer that hung for half a minute, once another one has
        its triggers. The task is still deferred then, and its Job goes on.
        """
        if await self._is_awaited():
            self.log.info("another triggerer waits for the Job, which goes on")
            return
        cluster, handle = await self._cluster(), Handle(**self.handle)
        await asyncio.to_thread(cluster.delete_job, handle.name, handle.uid, handle.kind)

    async def cleanup(self) -> None:
        """Record the positions in the logs, for the triggerer that continues."""
        if self._watch is not None:
            await asyncio.to_thread(self._watch.record)

    async def _is_awaited(self) -> bool:
        """Return whether the task still waits.

        Where that is unknown it does not: a user's kill has to end the Job.
        """
        from pbg_operators.internals import RuntimeTaskInstance  # DAGs are parsed without it

        if (ti := self.task_instance) is None:
            return False
        try:
            found = await sync_to_async(RuntimeTaskInstance.get_task_states)(
                dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
            )
        except Exception as error:  # noqa: BLE001 - any of Airflow's
            self.log.warning("the state of the task cannot be read, so its Job is deleted: %s", error)
            return False
        return DEFERRED in found.get(ti.run_id, {}).values()

    async def _wait(self) -> PbgError | None:
        self._watch = watch = Watch(
            await self._cluster(),
            Handle(**self.handle),
            startup_seconds=self.startup_seconds,
            interval=self.interval,
            say=self.log.info,
        )
        look = sync_to_async(watch.look, thread_sensitive=False, executor=LOOKS)
        while True:
            verdict = await look()
            if verdict is not None:
                return verdict.error
            await asyncio.sleep(watch.pause)

    async def _cluster(self) -> Cluster:
        # Airflow answers a thread's request for a connection only where it knows the loop from which the thread comes.
        return await sync_to_async(Cluster.connected)(self.conn_id, self.namespace)


def event_of(error: PbgError | None) -> dict[str, str]:
    """Return the event for an end of the Job."""
    if error is None:
        return {}
    return {"kind": error.kind, "message": str(error)} | ({DOUBT: "yes"} if isinstance(error, DoubtfulError) else {})


def error_of(event: Mapping[str, str]) -> PbgError | None:
    """Return the end of the Job for an event."""
    if not event:
        return None
    category = DoubtfulError if DOUBT in event else BY_KIND.get(event["kind"], PbgError)
    return category(event["message"])
