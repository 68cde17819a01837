"""``OnSpark``: a task's command on Spark, where ``launch.prepare`` names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from pbg_operators.connection import CREDENTIALS, missing, with_store
from pbg_operators.on_cluster import OnCluster
from pbg_operators.spark.application import Application
from pbg_operators.spark.submission import Submission
from pbg_tasks.config.prepare import SparkConnect, SparkKubernetes, SparkSubmit
from pbg_tasks.errors import PbgError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from pbg_tasks.config import SparkLaunch

DEFAULT_PORT = 15002
"""Port of a Spark Connect server."""
_SPARK = SparkSubmit().connection
_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable


class OnSpark(OnCluster):
    """Operator whose command may run in an application of Spark, too.

    Attributes:
        spark: application or session; None: neither.
    """

    spark: SparkLaunch | None
    _application: Submission | Application | None = None

    @property
    def _is_elsewhere(self) -> bool:
        """Whether another process than the worker's runs the command."""
        return self.kubernetes is not None or isinstance(self.spark, SparkSubmit | SparkKubernetes)

    def _error_elsewhere(self, context: Context, environment: Mapping[str, str]) -> PbgError | None:
        """Run the command in an application or Job; return its error.

        Raises:
            TaskDeferred: the triggerer waits for the Job.
        """
        try:
            return self._run_elsewhere(context, environment)
        except PbgError as error:
            return error

    def _run_elsewhere(self, context: Context, environment: Mapping[str, str]) -> PbgError | None:
        call = (self.command, *self.arguments)
        if isinstance(self.spark, SparkSubmit):
            submission = self._application = Submission(self.spark, self.task_id, call)
            return submission.run(context, environment)
        if isinstance(self.spark, SparkKubernetes):
            application = self._application = Application(self.spark, self.task_id, call)
            variables = with_store({}, self.store_conn_id)
            # Keys come from a Secret of the cluster: a SparkApplication is no place for them.
            shown = {name: value for name, value in variables.items() if name not in CREDENTIALS}
            return application.run(context, shown)
        if self.kubernetes is None:
            raise RuntimeError("a command of the worker has no place elsewhere: a bug")
        return self._job_error(context, self.kubernetes)

    def _with_session(self, environment: dict[str, str]) -> dict[str, str]:
        """Return an environment with the variables of a Spark Connect session.

        Raises:
            AirflowNotFoundException: there is no connection that the spec names.
        """
        if isinstance(self.spark, SparkSubmit) and self.spark.connection != _SPARK:
            _found(self.spark.connection, "launch.spark_submit")  # the provider would take YARN without it
        if not isinstance(self.spark, SparkConnect):
            return environment
        if self.spark.connection is None:
            return environment | {"SPARK_REMOTE": str(self.spark.remote)}
        connection = _found(self.spark.connection, "launch.spark_connect")
        encrypted = str(connection.extra_dejson.get("use_ssl", False)).lower()
        host = str(connection.host or "").removeprefix("sc://")
        url = f"sc://{host}:{connection.port or DEFAULT_PORT}/;use_ssl={encrypted}"
        token = {_TOKEN_VARIABLE: connection.password} if connection.password else {}
        # The worker's token is another server's.
        own = {name: value for name, value in environment.items() if name != _TOKEN_VARIABLE}
        return own | {"SPARK_REMOTE": self.spark.remote or url} | token

    def _end_elsewhere(self) -> None:
        """End the application, or delete the Job, if there is one."""
        if self._application is not None:
            self._application.kill()
        self._delete_job()


def _found(conn_id: str, key: str) -> Connection:
    try:
        found: Connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        raise missing(conn_id, key) from None
    return found
