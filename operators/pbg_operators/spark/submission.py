"""``Submission``: a command that ``spark-submit`` runs, by Airflow's SparkSubmitOperator."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

import pbg_tasks
from pbg_operators.internals import as_part_of_task
from pbg_operators.spark.ending import error_of
from pbg_operators.spark.providers import check_provider
from pbg_tasks.errors import ERROR_FILE, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.sdk import Context

    from pbg_tasks.config import SparkSubmit
    from pbg_tasks.errors import PbgError

_ONE_ATTEMPT = {
    "spark.yarn.maxAppAttempts": "1",
    "spark.yarn.submit.waitAppCompletion": "true",
    "spark.kubernetes.submission.waitAppCompletion": "true",
}
"""Settings by which ``spark-submit`` ends with the application; Airflow tries again, and not where a task refused."""


class Submission:
    """Application of one command.

    Its lines go to the task's log. It is submitted anew by each try, as a process of the worker would be.

    Args:
        launch: of the spec.
        task_id: of the task.
        call: command and arguments of ``pbg``.
    """

    def __init__(self, launch: SparkSubmit, task_id: str, call: Sequence[str]) -> None:
        self._launch, self._call = launch, list(call)
        self._task_id = task_id
        self._operator: Any = None

    def run(self, context: Context, environment: Mapping[str, str]) -> PbgError | None:
        """Submit the application, and wait; return why it failed.

        Args:
            context: of the task.
            environment: of ``spark-submit``, and in client mode of the command.

        Raises:
            ConfigError: the provider is missing.
        """
        check_provider("spark_submit")
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

        launch, what = self._launch, f"pbg {self._call[0]}"
        self._operator = SparkSubmitOperator(
            task_id=self._task_id,
            application=launch.application or str(Path(pbg_tasks.__file__).with_name("__main__.py")),
            application_args=[*self._call, "--json"],
            conf=launch.settings | (_ONE_ATTEMPT if launch.deploy_mode == "cluster" else {}),
            conn_id=launch.connection,
            deploy_mode=launch.deploy_mode,
            properties_file=launch.properties_file,
            name=f"{what} {self._call[1].rpartition('/')[2]}",
            durable=False,  # the store lets a second try go on; a driver of YARN takes settings to be found again
        )
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder, "error")
            own = {name: value for name, value in environment.items() if not name.startswith("SPARK_CONNECT_")}
            own.pop("SPARK_REMOTE", None)  # with it the driver would leave its cluster for a Spark Connect server
            variables = {**own, ERROR_FILE: str(note), "PYTHONSAFEPATH": "1"}
            if launch.deploy_mode == "client":
                variables.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
            try:
                with _environment(variables):
                    as_part_of_task(self._operator, context)
            except FileNotFoundError as error:
                return ConfigError(f"launch.prepare: spark_submit: {error.filename} is not in PATH of this worker")
            except (AirflowException, RuntimeError, ValueError) as error:
                return error_of(what, note.read_text().strip() if note.exists() else "", str(error))
        return None

    def kill(self) -> None:
        """End ``spark-submit``, and the driver with it."""
        if self._operator is not None:
            self._operator.on_kill()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Give this process an environment, which ``spark-submit`` inherits.

    The provider can add variables, not leave any out, such as keys of the worker in place of which a connection has
    others. A task is alone in its process.
    """
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
