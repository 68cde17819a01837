"""``PbgTaskGroup`` and ``build_dag``: nights in a DAG of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronPartitionTimetable, PartitionedAssetTimetable, TaskGroup

from pbg_operators.alerts import check_notifiers, of_failed_task
from pbg_operators.assets import edges_asset
from pbg_operators.form import trigger_form
from pbg_operators.graphs import spec_file
from pbg_operators.internals import warn_of_untested_release
from pbg_operators.night import Night
from pbg_operators.reembed import night_dag, timetable_of
from pbg_operators.settings import apply, defaults, facts
from pbg_tasks.config import load_graph_spec
from pbg_tasks.config.airflow import NIGHTS_TAG
from pbg_tasks.config.nights import Calendar
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from airflow.sdk import BaseOperator
    from pydantic import JsonValue

    from pbg_operators.plan import PlanOperator
    from pbg_operators.publish import PublishOperator
    from pbg_operators.task import PbgOperator


class PbgTaskGroup(TaskGroup):
    """Night of a graph as a task group of any DAG.

    What follows the group runs once the night has ended well, whether or not its release was published. The DAG gets
    the tags by which the pages find it. A deadline is the DAG's own affair.

    Args:
        spec: path of the graph spec; below the configured folder of specs, if it is not absolute.
        snapshot: key of the snapshot, a template or the result of a task; None: the partition key of the DAG's run, so
            that a schedule without keys is refused.
        group_id: of the group; None takes the name of the graph.
        form: whether the DAG gets the form of a night beside its own. Without it, the DAG's params change no night.
        default_args: of the group's tasks. They go before those of the DAG; the spec's section ``airflow`` goes before
            both.
        **arguments: further ones of ``TaskGroup``.

    Attributes:
        plan: task that plans the run; ``group.plan.output["run"]`` is the run's URL.
        publish: task that moves the channel; it is skipped where the channel did not move, and so is what follows it.
        summary: task that returns the figures of the night; what follows the group follows it.

    Raises:
        ConfigError: the spec is wrong; the message names file and key. Or nothing names the snapshot of scheduled runs.
    """

    plan: PlanOperator
    publish: PublishOperator
    summary: PbgOperator

    def __init__(
        self,
        spec: Path | str,
        snapshot: Any = None,  # noqa: ANN401 - a template or a task's result
        *,
        group_id: str | None = None,
        form: bool = False,
        default_args: Mapping[str, JsonValue] | None = None,
        **arguments: Any,  # noqa: ANN401 - TaskGroup's own
    ) -> None:
        warn_of_untested_release()
        path = spec_file(spec)
        graph = load_graph_spec(path)
        check_notifiers(graph, path)
        tooltip = {"tooltip": f"Embed graph {graph.graph} and publish its vectors"}
        super().__init__(group_id=group_id or graph.graph, **tooltip | arguments)
        surrounding = self.dag.default_args | self.default_args
        usual = {name: value for name, value in defaults(graph).items() if name not in surrounding}
        given = surrounding | dict(default_args or {})
        self.default_args = {
            **self.default_args,
            **usual,
            **facts(graph),
            **(default_args or {}),
            **of_failed_task(graph, given.get("on_failure_callback")),
        }
        if snapshot is None and not _gives_keys(self.dag.timetable):
            raise ConfigError(
                f"{path}: group {self.group_id!r}: {_without_keys(self.dag)}; name the snapshot by snapshot=, a "
                f"template or a task's result, or take a schedule with keys: {_WITH_KEYS}"
            )
        prefix = self.child_id("")  # type: ignore[no-untyped-call] # Airflow's
        with self:
            night = Night(graph, path, prefix=prefix, snapshot=snapshot, form=form)
        self.plan, self.publish = night.plan, night.publish
        self.summary = night.summary
        apply(graph, self.iter_tasks(), path, prefix)
        if form:  # only now, as in ``night_dag``
            self.dag.params.update(trigger_form(graph, self.dag.dag_id))
        self.dag.tags |= {NIGHTS_TAG, graph.graph, *graph.airflow.tags}

    def get_leaves(self) -> Generator[BaseOperator, None, None]:
        """Yield the task that ends the night.

        Pages and promotion do not decide on what follows.
        """
        yield self.summary


def build_dag(spec: Path | str, dag_id: str | None = None, **arguments: Any) -> DAG:  # noqa: ANN401 - DAG's own
    """Make one DAG of a graph's nights, with arguments of one's own.

    Args:
        spec: as for ``PbgTaskGroup``.
        dag_id: of the DAG; None takes ``reembed_{graph}``, which no second file may make.
        **arguments: of ``DAG``, in place of those that nights have, such as ``schedule``. A cron text there is the
            spec's ``nights.calendar`` with this ``cron``, so its runs have partition keys. ``tags`` and ``params`` come
            beside those of nights, ``default_args`` go before them, but not before the spec's section ``airflow``.

    Raises:
        ConfigError: the spec is wrong; the message names file and key. Or ``schedule`` gives runs no partition key.
    """
    warn_of_untested_release()
    path = spec_file(spec)
    graph = load_graph_spec(path)
    check_notifiers(graph, path)
    schedule = arguments.pop("schedule", PartitionedAssetTimetable(assets=edges_asset(graph)))
    if isinstance(schedule, str):
        calendar = graph.nights.calendar or Calendar(cron="0 0 * * *")
        schedule = timetable_of(calendar.model_copy(update={"cron": schedule}), f"{path}: schedule={schedule!r}")
    dag = night_dag(graph, path, dag_id or f"reembed_{graph.graph}", schedule=schedule, **arguments)
    if not _gives_keys(dag.timetable):
        raise ConfigError(f"{path}: {_without_keys(dag)}; take a cron text, such as '@daily', or {_WITH_KEYS}")
    return dag


_WITH_KEYS = "CronPartitionTimetable, PartitionedAssetTimetable, or None for runs by hand"


def _gives_keys(timetable: Any) -> bool:  # noqa: ANN401 - of airflow.sdk or of Airflow's core
    """Return whether runs that a timetable begins have partition keys."""
    keyed = isinstance(timetable, CronPartitionTimetable | PartitionedAssetTimetable)
    return keyed or not timetable.can_be_scheduled or getattr(timetable, "partitioned", False)


def _without_keys(dag: DAG) -> str:
    kind = type(dag.timetable).__name__
    return f"the schedule of DAG {dag.dag_id!r}, {kind}, gives its runs no partition key, which names the snapshot"
