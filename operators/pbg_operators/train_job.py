"""``PBGTrainJobOperator``: the task that trains, on one rank or many.

The ranks run on the worker or on a Kubernetes cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pbg_operators.kubernetes.manifest import Gang
from pbg_operators.on_cluster import owner_of
from pbg_operators.task import PbgOperator, RetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from pydantic import JsonValue

    from pbg_tasks.config import KubernetesLaunch


class PBGTrainJobOperator(PbgOperator):
    """Run ``pbg train`` and return its result.

    ``launcher="local"`` runs it on the worker, several ranks as several processes. ``launcher="kubernetes"`` makes one
    Indexed Job, a pod a rank, and waits for its status, as every task with ``kubernetes`` does. A Job that follows a
    failed one continues from the last stored progress. ``launcher="jobset"`` makes a JobSet instead, in which the
    cluster restarts a broken gang without a further try of the task. Results come from the store.

    Args:
        launcher: where the ranks run.
        ranks: number of ranks that train together; templated, so that the trigger form can set it.
        partition_servers: number of dedicated ones, pods of their own after the ranks.
        max_restarts: ``local``, ``jobset``: how often a broken gang is started anew within one try.
        kubernetes: the Job, for launcher ``kubernetes`` and ``jobset``.
        deferrable: wait in the triggerer, which holds no worker's slot.
    """

    template_fields: Sequence[str] = (*PbgOperator.template_fields, "ranks")
    resumed_by: ClassVar[str] = "execute_complete"

    def __init__(
        self,
        *,
        launcher: Literal["local", "kubernetes", "jobset"] = "local",
        ranks: int | str = 1,
        partition_servers: int = 0,
        max_restarts: int = 2,
        kubernetes: KubernetesLaunch | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable"),
        **kwargs: Any,  # noqa: ANN401 - PbgOperator's own arguments
    ) -> None:
        on_worker = launcher == "local"
        super().__init__(command="train", kubernetes=None if on_worker else kubernetes, deferrable=deferrable, **kwargs)
        self.launcher = launcher
        self.ranks = ranks
        self.partition_servers = partition_servers
        self.max_restarts = max_restarts

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Train the run.

        Raises:
            RetryableError: it failed, and another try may succeed.
            Refused: it diverged, which was reported.
            AirflowSkipException: another DAG run is at the same training, as the first try or the cluster finds.
            AirflowFailException: it failed for good.
            TaskDeferred: the triggerer waits for the Job.
        """
        ranks = int(self.ranks)
        if self.launcher == "local":
            if ranks > 1:
                self.arguments = [*self.arguments, f"--ranks={ranks}", f"--max-restarts={self.max_restarts}"]
        elif self.kubernetes is None:
            raise AirflowFailException(
                f"launcher {self.launcher} needs the argument kubernetes, with image and resources"
            )
        return super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, str]) -> dict[str, JsonValue]:
        """Return the result of a Job whose end the triggerer has seen.

        Fails as ``execute`` does.
        """
        return self.job_ended(context, event)

    def _perform(self, context: Context, environment: Mapping[str, str]) -> dict[str, JsonValue]:
        """Train; fail where a later try meets another training.

        That may be of the try before, whose worker or node is lost and goes on: skipped beside it, the night would end
        as a success without a release.
        """
        resumed = self._event is not None
        try:
            return super()._perform(context, environment)
        except AirflowSkipException as outdone:
            submitted = resumed or self._killable is not None
            if context["ti"].try_number == 1 or (self.kubernetes is not None and not submitted):
                raise
            raise RetryableError(
                f"{outdone}; it may be an earlier try of this task, on a worker or node that is lost: clear the task "
                "when that training has ended"
            ) from None

    def _environment(self) -> dict[str, str]:
        """Return the variables of the command.

        One rank on a worker trains alone, as in a pod, even if the config has ``num_machines``: no other would come.
        """
        alone = {"WORLD_SIZE": "1"} if str(self.ranks) == "1" else {}
        return alone | super()._environment()

    def _gang(self, context: Context, launch: KubernetesLaunch) -> Gang:
        ranks = int(self.ranks)
        return Gang(
            run=self.arguments[0],
            ranks=ranks,
            servers=self.partition_servers if ranks > 1 else 0,
            owner=owner_of(context),
            launch=launch,
            command=self._pod_command(),
            kind="JobSet" if self.launcher == "jobset" else "Job",
            restarts=self.max_restarts,
        )
