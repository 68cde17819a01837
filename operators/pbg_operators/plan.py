"""``PlanOperator``: plans a run from a trigger form and a partition key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import WeightRule
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from pbg_operators.form import AUTO, FIELDS
from pbg_operators.task import ERROR_KEY, OutOfTurn, PbgOperator, check_arguments
from pbg_tasks.config.base import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow.sdk import Context
    from pydantic import JsonValue

WAIT = timedelta(minutes=1)
"""Pause after which a waiting run looks again; it waits for its snapshot or the night before and holds no slot
meanwhile.
"""
_TESTER = "dag_test"
"""User of a run of ``airflow dags test``, which begins no task again at a later time."""
_NEAR = 0.75
"""Similarity of a name to a field's that makes it a misspelt one."""
TRAINING = ("epochs", "dimension", "partitions", "engine")
"""Params that change the training, so that the run is a trial unless its form asks to publish it."""
ADJUSTABLE = (*TRAINING, "accept_data")
"""Params that are options of ``pbg plan`` by the same name; null leaves them to the spec."""


class PlanOperator(PbgOperator):
    """Run ``pbg plan`` for the snapshot of the partition key or form.

    It waits, without holding a slot, until the snapshot is whole, where the spec's watch defines that, and in a chain
    of nights until the night before has finished. A run that a calendar began also waits for a snapshot without any
    file yet, unless tasks come before this one; any other run has a wrong key then, and fails at once.

    Args:
        spec: path of the graph spec.
        snapshot: key of the snapshot; templated. None: the run's partition key or form names it.
        patience: how long a run waits; where tasks come before this one, from when it first looks in a try.
        store: of the spec. Airflow keeps it and the graph's name with each version of the DAG, and the pages show only
            runs of this graph in this store.
        source: the spec's ``snapshots`` as JSON, from which the pages list the keys that are there.
        form: whether the DAG has the form of a night; without it, params of the same names are the DAG's own.
    """

    # Airflow stores these fields with the DAG, where the pages and ``plugin.listener`` find them.
    template_fields = (*PbgOperator.template_fields, "snapshot", "graph", "store", "source", "store_conn_id", "form")
    overwrite_rtif_after_execution = True  # the task's page then shows the arguments, which are known only after it

    def __init__(
        self,
        *,
        spec: str,
        snapshot: Any = None,  # noqa: ANN401 - a template or a task's result
        patience: timedelta = timedelta(days=1),
        store: str = "",
        source: str = "",
        form: bool = True,
        **kwargs: Any,  # noqa: ANN401 - PbgOperator's own arguments
    ) -> None:
        # By Airflow's own rule the first task of a run goes before all later ones, so nights that wait would take each
        # slot of a full pool from the night that they wait for.
        super().__init__(command="plan", **{"weight_rule": WeightRule.ABSOLUTE, **kwargs})
        self.spec = spec
        self.snapshot = snapshot
        self.names_snapshot = snapshot is not None  # known only now: a task's result may be None
        self.patience = patience
        self.store = store
        self.source = source
        self.form = form

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Plan the run.

        Raises:
            AirflowFailException: neither the partition key nor the form names a snapshot, a field of the form holds
                credentials or has a misspelt name, or planning failed for good.
            AirflowRescheduleException: the snapshot does not exist or is not whole yet, or the night before is under
                way.
        """
        try:
            return self._plan(context)
        except AirflowFailException as error:
            context["ti"].xcom_push(key=ERROR_KEY, value=str(error))
            raise

    def _plan(self, context: Context) -> dict[str, JsonValue]:
        run = context["dag_run"]
        if self.form:
            of_dag = self.dag.params if self.has_dag() else ()  # type: ignore[no-untyped-call]
            _check_names(context["params"], {*FIELDS, *self.params, *of_dag})
        arguments = plan_arguments(self.spec, self._named(context), context["params"] if self.form else {})
        if run.run_type == "scheduled" and not self.upstream_task_ids:  # no task before this one makes the snapshot
            arguments.append(f"--due={run.run_after.isoformat(timespec='seconds')}")
        check_arguments(arguments)
        self.arguments = arguments
        try:
            return super().execute(context)
        except OutOfTurn as error:
            if getattr(run, "triggering_user_name", None) == _TESTER:
                raise AirflowFailException(
                    f"{error}; `airflow dags test` cannot wait for that: test a day that is due, or trigger the DAG"
                ) from None
            # Tasks before this one may take longer than the patience.
            began = context["ti"].get_first_reschedule_date(context) if self.upstream_task_ids else run.start_date
            now = datetime.now(UTC)
            if began is not None and now - began > self.patience:
                raise AirflowFailException(f"{error}; waited for {self.patience}") from None
            self.log.info("%s; looking again in %s", error, WAIT)
            raise AirflowRescheduleException(now + WAIT) from None  # type: ignore[no-untyped-call]

    def _named(self, context: Context) -> str | None:
        """Return the snapshot that the DAG or the partition key names.

        Raises:
            AirflowFailException: the DAG names one, and in this run it is no text or an empty one.
        """
        if not self.names_snapshot:
            key: str | None = context["dag_run"].partition_key
            return key
        if not isinstance(self.snapshot, str) or self.snapshot in {"", "None"}:
            raise AirflowFailException(
                f"snapshot: the template or task gives {self.snapshot!r} in this run; let it give the snapshot's key, "
                "a text that is not empty"
            )
        return self.snapshot


def _check_names(params: Iterable[str], known: Collection[str]) -> None:
    """Refuse a configuration with a misspelt field.

    Airflow takes what the form does not have, and nothing reads it, so that the night would be another one than was
    asked for. A name that is near to none may be meant for another task.

    Args:
        params: names that the run has values of.
        known: names of the DAG's fields.

    Raises:
        AirflowFailException: a name is near to that of a field.
    """
    for name in params:
        if name not in known and (near := did_you_mean(name, known, cutoff=_NEAR)):
            raise AirflowFailException(f"the run's configuration has {name!r}, which is no field of the form: {near}")


def snapshot_of(context: Context) -> str:
    """Return the snapshot of a partition key or form.

    Raises:
        AirflowFailException: there is neither, or they differ.
    """
    return _snapshot(context["dag_run"].partition_key, context["params"])


def _snapshot(partition_key: str | None, params: Mapping[str, JsonValue]) -> str:
    of_form = params.get("snapshot")
    if partition_key and of_form and of_form != partition_key:
        raise AirflowFailException(
            f"two snapshots: the run is of {partition_key!r}, its form asks for {of_form!r}; begin a run for each, and "
            "leave snapshot in the form empty where a partition key is given"
        )
    if not (snapshot := partition_key or of_form):
        raise AirflowFailException(
            "no snapshot: trigger the DAG with a partition key, or fill in snapshot in the form; the tab Nights lists "
            "those that are there"
        )
    return str(snapshot)


def plan_arguments(spec: str, partition_key: str | None, params: Mapping[str, JsonValue]) -> list[str]:
    """Return the arguments of ``pbg plan``.

    Raises:
        AirflowFailException: there is neither a partition key nor a snapshot in the form, or they differ.
    """
    snapshot = _snapshot(partition_key, params)
    chosen = [(name, params[name]) for name in ADJUSTABLE if params.get(name) is not None]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in chosen]
    options += [f"--param=launch.ranks={ranks}"] if (ranks := params.get("ranks")) is not None else []  # forecast alone
    asked = ["--no-publish"] if not publishes(params) else ["--publish"] if _changes_training(params) else []
    return [spec, f"--snapshot={snapshot}", *options, *asked]


def publishes(params: Mapping[str, JsonValue]) -> bool:
    """Return whether a run may publish.

    With changed training it is a trial, unless the form asks for more.
    """
    asked = params.get("publish", AUTO)
    if asked == AUTO:
        return not _changes_training(params)
    return bool(asked == "yes")


def _changes_training(params: Mapping[str, JsonValue]) -> bool:
    return any(params.get(name) is not None for name in TRAINING)
