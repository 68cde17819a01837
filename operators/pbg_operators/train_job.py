"""``PBGTrainJobOperator``: the task that trains, on one rank or many.

The ranks run on the worker or on a Kubernetes cluster.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pbg_operators import metrics
from pbg_operators.connection import with_store
from pbg_operators.kubernetes.api import Cluster
from pbg_operators.kubernetes.manifest import Gang
from pbg_operators.kubernetes.submission import Handle, submit
from pbg_operators.kubernetes.trigger import TrainJobTrigger, error_of
from pbg_operators.kubernetes.watch import Watch
from pbg_operators.task import PbgOperator, Refused, RetryableError, outdone
from pbg_tasks.errors import ConflictError, PbgError, QualityGateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from pbg_tasks.config import KubernetesLaunch

STATE = "gang"
"""Key of the task state with the Job that this task waits for."""


class PBGTrainJobOperator(PbgOperator):
    """Run ``pbg train`` and return its result.

    ``launcher="local"`` runs it on the worker, several ranks as several processes. ``launcher="kubernetes"`` makes one
    Indexed Job, a pod a rank, and waits for its status. That Job is made once: its name follows from run and attempt,
    its uid is kept in the task's state, and a try that follows a lost worker finds it and goes on waiting. Only when it
    has failed does the next try make another one, which continues from the last stored progress. Results come from the
    store.

    Args:
        launcher: where the ranks run.
        ranks: number of ranks that train together; templated, so that the trigger form can set it.
        partition_servers: number of dedicated ones, pods of their own after the ranks.
        max_restarts: ``local``: how often a broken gang is started anew within one try.
        kubernetes: the Job, for launcher ``kubernetes``.
        kubernetes_conn_id: Airflow connection of the cluster. Without the default one, the cluster that Airflow runs
            in, or kubectl's.
        deferrable: wait in the triggerer, which holds no worker's slot.
        interval: seconds between looks at the Job.
    """

    template_fields: Sequence[str] = (*PbgOperator.template_fields, "ranks")

    def __init__(
        self,
        *,
        launcher: Literal["local", "kubernetes"] = "local",
        ranks: int | str = 1,
        partition_servers: int = 0,
        max_restarts: int = 2,
        kubernetes: KubernetesLaunch | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable"),
        interval: float = 5.0,
        **kwargs: Any,  # noqa: ANN401 - PbgOperator's own arguments
    ) -> None:
        super().__init__(command="train", **kwargs)
        self.launcher = launcher
        self.ranks = ranks
        self.partition_servers = partition_servers
        self.max_restarts = max_restarts
        self.kubernetes = kubernetes
        self.kubernetes_conn_id = kubernetes_conn_id
        self.deferrable = deferrable
        self.interval = interval
        self._killable: tuple[Cluster, Handle] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Train the run.

        Raises:
            RetryableError: it failed, and another try may succeed.
            Refused: it diverged, which was reported.
            AirflowSkipException: another DAG run is at the same training.
            AirflowFailException: it failed for good.
            TaskDeferred: the triggerer waits for the Job.
        """
        ranks = int(self.ranks)
        if self.launcher == "local":
            if ranks > 1:
                self.arguments = [*self.arguments, f"--ranks={ranks}", f"--max-restarts={self.max_restarts}"]
            return super().execute(context)
        if self.kubernetes is None:
            raise AirflowFailException("launcher kubernetes needs the argument kubernetes, with image and resources")
        self._show_link(context, self.arguments[0], self._environment())
        with self._telling(context):
            try:
                return self._on_cluster(context, self.kubernetes, ranks)
            except PbgError as error:
                raise task_failure(error) from None

    def execute_complete(self, context: Context, event: Mapping[str, str]) -> dict[str, Any]:
        """Return the result of a Job whose end the triggerer has seen.

        Raises:
            RetryableError: it failed, and another try may succeed.
            Refused: it diverged, which was reported.
            AirflowSkipException: another DAG run is at the same training.
            AirflowFailException: it failed for good.
        """
        environment = self._environment()
        self._show_link(context, self.arguments[0], environment)
        with self._telling(context):
            return self._result(error_of(event))

    def on_kill(self) -> None:
        """End the command, or delete the Job.

        Its ranks store their progress while their pods end.
        """
        super().on_kill()
        if self._killable is not None:
            cluster, handle = self._killable
            try:
                cluster.again().delete_job(handle.name, handle.uid)
            except PbgError as error:
                self.log.warning("Job %s goes on, it could not be deleted: %s", handle.name, error)

    def _on_cluster(self, context: Context, launch: KubernetesLaunch, ranks: int) -> dict[str, Any]:
        cluster = Cluster.connected(self.kubernetes_conn_id, launch.namespace)
        state = context["task_state_store"]
        gang = Gang(
            run=self.arguments[0],
            ranks=ranks,
            servers=self.partition_servers if ranks > 1 else 0,
            owner=_owner(context),
            launch=launch,
            command=("python", "-P", "-m", self.module, "train", self.arguments[0], "--json"),
        )

        def record(handle: Handle) -> None:
            self._killable = cluster, handle
            state.set(STATE, handle.to_json())

        earlier: Any = state.get(STATE)
        handle = submit(
            cluster, gang, Handle(**earlier) if earlier else None, with_store({}, self.store_conn_id), record
        )
        self.log.info("Job %s (uid %s) in namespace %s: %d pods", handle.name, handle.uid, launch.namespace, gang.size)
        if self.deferrable:
            trigger = TrainJobTrigger(
                conn_id=self.kubernetes_conn_id,
                namespace=launch.namespace,
                handle=handle.to_json(),
                startup_seconds=launch.startup_seconds,
                interval=self.interval,
            )
            self.defer(trigger=trigger, method_name="execute_complete")
        return self._result(self._wait(cluster, handle, launch.startup_seconds))

    def _wait(self, cluster: Cluster, handle: Handle, startup_seconds: int) -> PbgError | None:
        watch = Watch(cluster, handle, startup_seconds=startup_seconds, interval=self.interval, say=self._say)
        try:
            while (verdict := watch.look()) is None:
                time.sleep(watch.pause)
        finally:
            watch.record()
        return verdict.error

    def _result(self, error: PbgError | None) -> dict[str, Any]:
        if error is not None:
            raise task_failure(error)
        self.found = self._run(self._environment(), "show", [self.arguments[0], "--task=train"])
        self._measure(metrics.send, self.command, self.found)
        return self.found

    def _say(self, line: str) -> None:
        self.log.info("%s", line)


def task_failure(error: PbgError) -> AirflowException:
    """Return the exception with which a failed task ends.

    Its class decides whether to try again, as in ``failure``.
    """
    message = f"{error.kind}: {error}"
    if isinstance(error, QualityGateError):
        return Refused(message)
    if isinstance(error, ConflictError):
        return outdone(message)
    return RetryableError(message) if error.retryable else AirflowFailException(message)


def _owner(context: Context) -> str:
    """Return the name of this task instance, without its try."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
