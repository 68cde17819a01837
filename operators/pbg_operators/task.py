"""``PbgOperator``: one ``pbg`` command as an Airflow task.

The file is longer than others so that all ways in which a task ends can be read together.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from pydantic import BaseModel, ValidationError

from pbg_operators import metrics
from pbg_operators.connection import with_store
from pbg_operators.lineage import operator_lineage, places, tasks_of
from pbg_operators.link import RunLink, address_of_run
from pbg_operators.on_spark import OnSpark
from pbg_operators.process import CommandProcess
from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.base import explain
from pbg_tasks.config.results import GateFindings, Judged, PlanResult
from pbg_tasks.errors import (
    BY_EXIT_CODE,
    AccessError,
    ConflictError,
    OutOfTurnError,
    PbgError,
    QualityGateError,
    UnusableError,
)
from pbg_tasks.redaction import credentials_in, redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow.sdk import Context
    from jinja2 import Environment
    from pydantic import JsonValue

    from pbg_operators.alerts import Alert
    from pbg_tasks.config import KubernetesLaunch, SparkLaunch

Shape = TypeVar("Shape", bound=BaseModel)
ERROR_KEY = "error"
"""XCom with the reason why a task failed, which the pages show."""
REFUSED_KEY = "refused"
"""XCom key of a task that refused its night, with the sentence. A task that failed otherwise has none."""
ASKED_KEY = "asked"  # XCom key of a task that asked a person about its refusal, instead of failing
UNSENT_KEY = "unsent"  # XCom key of a task whose alert of a refusal could not be sent
JUDGES = ("validate", "partition", "gate")
"""Commands that store their results before they refuse a night."""
KILL_GRACE_SECONDS = 3.5
"""Airflow kills a task 5 s after its signal to end; the command must have ended by then."""


class RetryableError(AirflowException):
    """Error: the command failed for a reason that may pass by itself.

    The store may be unreachable, or the machine short of memory.
    """


class Refused(AirflowFailException):
    """Error: the night is not good enough, or would take too much.

    Attributes:
        unsent: whether a notifier failed to send the alert of it.
    """

    unsent = False


class Unusable(Refused):
    """Error: the night is unusable, and cannot be approved either."""


class OutOfTurn(RetryableError):  # noqa: N818 - no error: the task's time has not come
    """Error: the snapshot is not whole, or an earlier night is unfinished."""


class PbgOperator(OnSpark):
    """Run ``pbg COMMAND ARGUMENTS... --json`` and return its result.

    The command's progress lines go to the task's log while it runs. Its exit status decides what happens next: after a
    failure of a category that may pass by itself the task is tried again, as ``retries`` allows; after any other it
    fails at once.

    Args:
        command: subcommand of ``pbg``.
        arguments: of the subcommand; templated. The first one is the run's URL, except for ``plan``.
        store_conn_id: a connection of type ``pbg`` or ``aws`` with the store's keys and endpoint. When there is no
            connection ``pbg_s3``, or for None, the command finds them in the worker's environment.
        scratch: local directory for the command's temporary files, made when missing; templated. None leaves it to
            ``PBG_SCRATCH`` of the worker. What killed commands left there is removed before the command.
        snapshots: location of the graph's snapshots, with ``{snapshot}``; for OpenLineage only.
        columns: of the snapshots by role, as in the graph spec; for OpenLineage only.
        graph: name of the graph, for metrics; none are sent without it.
        refused: alert for a night that the command refuses; None for no alert.
        warned: alert for the warnings of a command that judges a night and lets it pass.
        kubernetes: run the command as a Job of a cluster; its result then comes from the store.
        kubernetes_conn_id: Airflow connection of the cluster; None takes the one that ``kubernetes`` names.
        deferrable: wait for the Job in the triggerer; None takes the setting of ``kubernetes``.
        interval: seconds between looks at the Job.
        spark: run the command as an application of Spark, whose result comes from the store as well; or in a session of
            Spark Connect.
    """

    template_fields: Sequence[str] = ("arguments", "scratch")
    operator_extra_links: tuple[RunLink, ...] = (RunLink(),)
    ui_color = "#e8f0fe"
    module: ClassVar[str] = "pbg_tasks"

    def __init__(
        self,
        *,
        command: str,
        arguments: Sequence[str] = (),
        store_conn_id: str | None = "pbg_s3",
        scratch: str | None = None,
        snapshots: str = "",
        columns: Mapping[str, str | None] | None = None,
        graph: str = "",
        refused: Alert | None = None,
        warned: Alert | None = None,
        kubernetes: KubernetesLaunch | None = None,
        kubernetes_conn_id: str | None = None,
        deferrable: bool | None = None,
        interval: float = 5.0,
        spark: SparkLaunch | None = None,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's own arguments
    ) -> None:
        super().__init__(**kwargs)
        self.command = command
        self.arguments = list(arguments)
        self.store_conn_id = store_conn_id
        self.scratch = scratch
        self.snapshots = snapshots
        self.columns = dict(columns or {})
        self.graph = graph
        self.refused, self.warned = refused, warned
        self.kubernetes, self.kubernetes_conn_id = kubernetes, kubernetes_conn_id
        self.interval, self.spark = interval, spark
        self.deferrable = kubernetes is not None and kubernetes.deferrable if deferrable is None else deferrable
        self.run_url = ""
        self.found: dict[str, JsonValue] = {}
        self._process: CommandProcess | None = None
        self._was_refused = self._lacks_connection = False

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the templates.

        Raises:
            AirflowFailException: an argument holds credentials, which Airflow would store and show.
        """
        super().render_template_fields(context, jinja_env)
        check_arguments(self.arguments)

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Run the command.

        Raises:
            RetryableError: it failed, and another try may succeed.
            Refused: it refused the night, which was reported.
            AirflowFailException: it failed for good.
            AirflowSkipException: another run is at the same training, and the store let that one go on.
            TaskDeferred: the triggerer waits for the command's Job.
        """
        with self._reporting(context):
            return self._command(context)

    @contextmanager
    def _reporting(self, context: Context) -> Iterator[None]:
        """Report a refusal; any command of a night may refuse it."""
        try:
            yield
        except Refused as refusal:
            self._was_refused = True
            self._measure(metrics.count_refusal, self.command)
            # Airflow has one state for refusals and other failures. This XCom distinguishes them; the scheduler makes
            # the task's note of it (plugin.listener), which a worker cannot write.
            context["ti"].xcom_push(key=REFUSED_KEY, value=str(refusal))
            if self.refused is not None and self.refused({**context}, str(refusal)) is False:
                refusal.unsent = True
                context["ti"].xcom_push(key=UNSENT_KEY, value=True)
            raise
        except OutOfTurn:
            raise
        except (RetryableError, AirflowFailException, AirflowNotFoundException) as error:  # the last: of a connection
            context["ti"].xcom_push(key=ERROR_KEY, value=str(error))
            raise

    def _command(self, context: Context) -> dict[str, JsonValue]:
        environment = self._environment()
        if self.command != "plan" and self.arguments:
            self._show_link(context, self.arguments[0])
        self.found = self._perform(context, environment)
        if self.command == "plan":
            self._show_link(context, answer(PlanResult, self.command, self.found).run)
        for task, found in tasks_of(self.command, self.found).items():
            self._measure(metrics.send, task, found)
        if self.warned is not None and (sentences := warnings_of(self.command, self.found)):
            self.warned({**context}, f"run {self.run_url}: {'; '.join(sentences)}")
        return self.found

    def _perform(self, context: Context, environment: Mapping[str, str]) -> dict[str, JsonValue]:
        """Run the command, on the worker or elsewhere."""
        if not self._is_elsewhere:
            return self._run(environment, self.command, self.arguments)
        if (error := self._error_elsewhere(context, environment)) is not None:
            found = task_failure(self.command, error)
            if not isinstance(error, AccessError):
                raise found
            lacks = self._lacks_connection if self.kubernetes is None else self._is_keyless(context)
            raise self._unconnected(found) if lacks else found
        return self._stored(environment)

    def _stored(self, environment: Mapping[str, str]) -> dict[str, JsonValue]:
        """Return the result that the command has stored elsewhere."""
        if self.command in TOGETHER:  # finds all of its tasks done, and puts their results together
            return self._run(environment, self.command, self.arguments)
        return self._run(environment, "show", [self.arguments[0], f"--task={self.command}"])

    def _measure(self, send: Callable[..., None], task: str, *figures: Mapping[str, JsonValue]) -> None:
        """Send metrics; a night does not fail without them."""
        if self.graph:
            try:
                send(self.graph, task, *figures)
            except Exception as error:  # noqa: BLE001 - of any backend that Airflow was given
                self.log.warning("no metrics of this task: %s", error)

    def lineage(self) -> tuple[list[str], list[str]]:
        """Return the URLs of the task's inputs and outputs.

        There are none before the task knows its run.
        """
        run = self.run_url or (self.arguments[0] if self.command != "plan" and self.arguments else "")
        return places(self.command, run, self.snapshots) if run else ([], [])

    def get_openlineage_facets_on_start(self) -> Any:  # noqa: ANN401 - of an optional provider
        """Return the lineage for OpenLineage when the task starts."""
        return operator_lineage(self.command, self.lineage(), result=self.found, columns=self.columns)

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:  # noqa: ANN401, ARG002 - same
        """Return the lineage with the task's result."""
        return self.get_openlineage_facets_on_start()

    def get_openlineage_facets_on_failure(self, task_instance: object) -> Any:  # noqa: ANN401 - same
        """Return the lineage with the results of gates where one refused.

        They are stored, but the command did not return them.
        """
        together = TOGETHER.get(self.command)
        judged: dict[str, dict[str, JsonValue]] = {}
        try:
            for task in JUDGES if self._was_refused else ():
                if task in (together or (self.command,)):
                    judged[task] = self._run(self._environment(), "show", [self.run_url, f"--task={task}"])
        except (AirflowException, OSError) as error:  # also of a gate after the one that refused
            self.log.info("OpenLineage gets no further figures: %s", error)
        if judged:
            self.found = {"tasks": {**judged}} if together else judged[self.command]
        return self.get_openlineage_facets_on_complete(task_instance)

    def on_kill(self) -> None:
        """End the command and all its processes, or its application or Job."""
        if self._process is not None:
            self._process.stop(KILL_GRACE_SECONDS)
        self._end_elsewhere()

    def _environment(self) -> dict[str, str]:
        """Return the variables of the command, with a scratch directory that exists.

        Raises:
            RetryableError: a connection of the spec was not found.
        """
        own = {**os.environ, "PYTHONUNBUFFERED": "1"}
        try:
            given = with_store(own, self.store_conn_id)
            environment = self._with_session(given)
        except AirflowNotFoundException as error:
            raise RetryableError(str(error)) from None
        self._lacks_connection = self.store_conn_id is not None and given == own
        if self.scratch:
            Path(self.scratch).mkdir(parents=True, exist_ok=True)
            environment["PBG_SCRATCH"] = self.scratch
        return environment

    def _run(self, environment: Mapping[str, str], command: str, arguments: Sequence[str]) -> dict[str, JsonValue]:
        # -P: the worker's current directory must not shadow installed modules
        call = [sys.executable, "-P", "-m", self.module, command, *arguments, "--json"]
        self._sweep(environment)
        self.log.info("pbg %s", redacted(" ".join(call[4:])))
        self._process = CommandProcess(call, environment)
        for line in self._process.lines():
            self.log.info("%s", line)
        status, output = self._process.finish()
        if status < 0:
            self._sweep(environment)
        if status != 0:
            error = failure(command, status, self._process.last_lines)
            raise self._unconnected(error) if status == AccessError.exit_code and self._lacks_connection else error
        return parse_result(command, output)

    def _unconnected(self, error: AirflowException) -> RetryableError:
        """Return the error of a command refused for lack of a connection."""
        return RetryableError(
            f"{error}; Airflow found no connection {self.store_conn_id!r}: add it, unless worker or pod has keys or a "
            "role of its own; while its server or database fails, Airflow finds none either"
        )

    def _sweep(self, environment: Mapping[str, str]) -> None:
        """Remove the scratch of killed commands, of whatever task and DAG.

        Each worker does so for itself: no other one knows its disk.
        """
        from pbg_tasks.storage.staging import scratch_root, sweep  # DAGs are parsed without it

        for removed in sweep(scratch_root(environment)):
            self.log.info("removed %s, which a killed command left", removed)

    def _show_link(self, context: Context, run_url: str) -> None:
        self.run_url, ti = run_url, context["ti"]
        ti.xcom_push(key=self.operator_extra_links[0].xcom_key, value=address_of_run(ti.dag_id, ti.run_id))


class GraphOperator(PbgOperator):
    """Run a ``pbg`` command that takes a graph spec or a store."""

    operator_extra_links = ()

    def execute(self, context: Context) -> dict[str, JsonValue]:  # noqa: ARG002 - BaseOperator's signature
        """Run the command; fails as ``PbgOperator`` does."""
        return self._run(self._environment(), self.command, self.arguments)


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse credentials among the arguments of a command.

    Raises:
        AirflowFailException: an argument holds credentials; the message has its position, not the argument.
    """
    for number, argument in enumerate(arguments, start=1):
        if found := credentials_in(str(argument)):
            raise AirflowFailException(
                f"argument {number} of the task holds {found}: write the place alone, and the keys into the Airflow "
                "connection"
            )


def failure(command: str, status: int, last_lines: Sequence[str]) -> AirflowException:
    """Return the exception for a ``pbg`` command that ended with ``status``.

    Its message has the reason, and its class what follows. An export below its floor refuses no night.
    """
    error_lines = [line for line in last_lines if line.startswith("error: ")]
    if status < 0:
        name = signal.Signals(-status).name
        return RetryableError(f"pbg {command} was ended by {name}; if not on purpose, memory ran out")
    reason = (error_lines or list(last_lines) or ["it printed nothing"])[-1].removeprefix("error: ")
    message = f"pbg {command} ended with status {status}: {reason}"
    category = BY_EXIT_CODE.get(status, PbgError)
    return OutOfTurn(message) if category is OutOfTurnError else _failure_of(category, command, message)


def task_failure(command: str, error: PbgError) -> AirflowException:
    """Return the exception for a command whose Job failed.

    Its class decides whether to try again, as in ``failure``.
    """
    return _failure_of(type(error), command, f"{error.kind}: {error}")


def _failure_of(category: type[PbgError], command: str, message: str) -> AirflowException:
    """Return the exception for a category of errors."""
    if issubclass(category, QualityGateError) and command != "export-release":
        return Unusable(message) if issubclass(category, UnusableError) else Refused(message)
    if issubclass(category, ConflictError) and command == "train":  # the store let the other run go on
        return AirflowSkipException(f"another run trains it: {message}")
    return RetryableError(message) if category.retryable else AirflowFailException(message)


def answer(shape: type[Shape], command: str, result: Mapping[str, JsonValue]) -> Shape:
    """Return the answer of a command by its model.

    Raises:
        AirflowFailException: it is not of this form.
    """
    try:
        return shape.model_validate(result)
    except ValidationError as error:
        raise AirflowFailException(
            f"pbg {command} succeeded, yet its answer is of another version: {explain(shape, error)}; install one "
            "version of pbg-tasks on the worker"
        ) from None


def warnings_of(command: str, result: Mapping[str, JsonValue]) -> list[str]:
    """Return the warnings of a command that judges a night.

    Raises:
        AirflowFailException: the result has no verdict.
    """
    return [
        check.sentence
        for task, found in tasks_of(command, result).items()
        if task in JUDGES
        for check in (
            answer(GateFindings, task, found) if task == "gate" else answer(Judged, task, found).data_gate
        ).checks
        if check.warned
    ]


def parse_result(command: str, output: str) -> dict[str, JsonValue]:
    """Return the JSON object in the last line of a command's stdout.

    Raises:
        AirflowFailException: there is none.
    """
    last = (output.strip().splitlines() or [""])[-1]
    try:
        result = json.loads(last)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise AirflowFailException(
            f"pbg {command} succeeded, yet its last line is no JSON object: {redacted(last)[:200]!r}"
        )
    return result
