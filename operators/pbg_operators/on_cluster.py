"""``OnCluster``: a task's command as a Job on a Kubernetes cluster.

The Job is made once: its name follows from run, task and attempt, its uid is kept in the task's state, and a try that
follows a lost worker finds it and goes on waiting. Only when it has failed does the next try make another one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from pbg_operators.connection import with_store
from pbg_operators.kubernetes.api import Cluster
from pbg_operators.kubernetes.manifest import Gang
from pbg_operators.kubernetes.submission import Handle, submit
from pbg_operators.kubernetes.trigger import TrainJobTrigger, error_of
from pbg_operators.kubernetes.watch import Watch
from pbg_tasks.errors import PbgError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context
    from pydantic import JsonValue

    from pbg_tasks.config import KubernetesLaunch

STATE = "gang"
"""Key of the task state with the Job that this task waits for."""
KEYLESS = "keyless"
"""Key of the task state with the uid of a Job that was made while Airflow found no connection to the store."""


class OnCluster(BaseOperator):
    """Operator whose command may run in pods instead of on the worker.

    Attributes:
        kubernetes: the Job; None runs the command on the worker.
        kubernetes_conn_id: Airflow connection of the cluster; None takes the one that the Job names.
        deferrable: wait in the triggerer, which holds no worker's slot.
        interval: seconds between looks at the Job.
    """

    command: str
    arguments: list[str]
    module: ClassVar[str]
    store_conn_id: str | None
    kubernetes: KubernetesLaunch | None
    kubernetes_conn_id: str | None
    deferrable: bool
    interval: float
    resumed_by: ClassVar[str] = "job_ended"
    """Method that continues when the triggerer has seen the end of the Job."""
    _killable: tuple[Cluster, Handle] | None = None
    _event: Mapping[str, str] | None = None

    def job_ended(self, context: Context, event: Mapping[str, str]) -> dict[str, JsonValue]:
        """Go on with the end of a Job.

        The triggerer has seen it. Fails as ``execute`` does.
        """
        self._event = event
        result: dict[str, JsonValue] = self.execute(context)
        return result

    def _gang(self, context: Context, launch: KubernetesLaunch) -> Gang:
        """Return the pods that run the command."""
        return Gang(
            run=self.arguments[0],
            ranks=1,
            servers=0,
            owner=owner_of(context),
            launch=launch,
            command=self._pod_command(),
            task=self._pod_task(),
        )

    def _pod_task(self) -> str:
        """Return the task's name for names and labels of its Job."""
        return self.command

    def _pod_command(self) -> tuple[str, ...]:
        return "python", "-P", "-m", self.module, self.command, *self.arguments, "--json"

    def _job_error(self, context: Context, launch: KubernetesLaunch) -> PbgError | None:
        """Run the command as a Job; return why it failed.

        Raises:
            TaskDeferred: the triggerer waits for the Job.
            PbgError: the cluster refused it.
        """
        if self._event is not None:
            event, self._event = self._event, None
            return error_of(event)
        conn_id = self.kubernetes_conn_id or launch.connection
        cluster = Cluster.connected(conn_id, launch.namespace)
        state = context["task_state_store"]
        gang = self._gang(context, launch)

        earlier: Any = state.get(STATE)
        values = with_store({}, self.store_conn_id)

        def record(handle: Handle) -> None:
            self._killable = cluster, handle
            state.set(STATE, handle.to_json())
            if not values and self.store_conn_id is not None:
                state.set(KEYLESS, handle.uid)

        handle = submit(cluster, gang, Handle(**earlier) if earlier else None, values, record)
        where = f"namespace {launch.namespace}"
        self.log.info("%s %s (uid %s) in %s: %d pods", handle.kind, handle.name, handle.uid, where, gang.size)
        if self.deferrable:
            trigger = TrainJobTrigger(
                conn_id=conn_id,
                namespace=launch.namespace,
                handle=handle.to_json(),
                startup_seconds=launch.startup_seconds,
                interval=self.interval,
            )
            self.defer(trigger=trigger, method_name=self.resumed_by)
        return self._wait(cluster, handle, launch.startup_seconds)

    def _wait(self, cluster: Cluster, handle: Handle, startup_seconds: int) -> PbgError | None:
        watch = Watch(cluster, handle, startup_seconds=startup_seconds, interval=self.interval, say=self.log.info)
        try:
            while (verdict := watch.look()) is None:
                time.sleep(watch.pause)
        finally:
            watch.record()
        return verdict.error

    def _is_keyless(self, context: Context) -> bool:
        """Return whether the recorded Job may lack keys of the store."""
        state: Any = context["task_state_store"]
        keyless = state.get(KEYLESS)
        return keyless is not None and keyless == state.get(STATE)["uid"]

    def _delete_job(self) -> None:
        """Delete the Job, if there is one.

        Its pods get time to store their progress.
        """
        if self._killable is not None:
            cluster, handle = self._killable
            try:
                cluster.again().delete_job(handle.name, handle.uid, handle.kind)
            except PbgError as error:
                self.log.warning("%s %s goes on, it could not be deleted: %s", handle.kind, handle.name, error)


def owner_of(context: Context) -> str:
    """Return the name of this task instance, without its try."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
