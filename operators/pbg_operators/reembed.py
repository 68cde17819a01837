"""``build_dags_of``: the DAGs of one graph's nightly chain."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronPartitionTimetable, PartitionedAssetTimetable, TaskGroup, chain
from airflow.sdk.exceptions import AirflowTimetableInvalid

from pbg_operators.alerts import Alert, check_notifiers, deadline, on_failure
from pbg_operators.assets import channel_asset, edges_asset, export_asset, readers_asset
from pbg_operators.broken import broken_dag
from pbg_operators.export import ExportOperator
from pbg_operators.form import trigger_form
from pbg_operators.gate import ApprovalGateOperator
from pbg_operators.plan import PlanOperator
from pbg_operators.promote import PromoteOperator
from pbg_operators.publish import FinishOperator, PublishOperator
from pbg_operators.report import ReportOperator
from pbg_operators.settings import DEFAULTS, apply
from pbg_operators.task import PbgOperator
from pbg_operators.train_job import PBGTrainJobOperator
from pbg_operators.tune import tune_dag
from pbg_operators.upkeep import upkeep_dags
from pbg_operators.xcom import pulled, pulled_if_any, template
from pbg_tasks.config import load_graph_spec
from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.results import BucketResult, EvalResult, PlanResult, PublishResult
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Asset

    from pbg_operators.internals import BaseTimetable
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.nights import Calendar, Nights

RUN = template(pulled("prepare", PlanResult, "run"))
RUN_IF_ANY = template(pulled_if_any("prepare", PlanResult, "run", "''"))
PUBLISHED = template(pulled_if_any("release", PublishResult, "published", "false"), json=True)
PUBLISHED_OF_FEW = template(pulled_if_any("release", PublishResult, "published", "false", within="finish"), json=True)
SNAPSHOT = {"snapshot": template(pulled("prepare", PlanResult, "snapshot"), json=True)}
FACTS = SNAPSHOT | {
    "mrr": template(pulled("release", EvalResult, "filtered", "mrr"), json=True),
    "edges": template(pulled("prepare", BucketResult, "edges", "total"), json=True),
}
FACTS_OF_FEW = SNAPSHOT | {
    "edges": template(pulled("prepare", BucketResult, "edges", "total", within="prepare"), json=True)
}
"""What a task knows that finds the MRR itself."""
WAITING = 32
"""Least number of runs of a chain that may be under way; nearly all of them wait in ``plan`` for the night before.

A waiting run is running to Airflow, though it holds no worker's slot. If only a few were allowed, those that wait for a
day that failed would take all places, and a new run of that day could not begin. The number is bounded, because each of
them looks once a minute.
"""


def build_dags_of(spec_path: Path) -> list[DAG]:
    """Make the DAGs of one graph from its spec.

    ``reembed_{graph}`` starts with an event of the edges asset that carries a partition key, or by hand with a key or a
    filled-in form. With a calendar in the spec, ``nightly_{graph}`` does the same at its times, and is what
    ``airflow backfill create`` takes: Airflow refuses one of a DAG that waits for assets. ``drill_{graph}`` practises
    the roll-back. A run's partition key is its snapshot; the store keeps runs of either DAG apart.

    Raises:
        ConfigError: the spec is wrong; the message names file and key.
    """
    spec = load_graph_spec(spec_path)
    check_notifiers(spec, spec_path)
    timetable = PartitionedAssetTimetable(assets=edges_asset(spec))
    # This DAG begins nothing by itself, and Airflow drops the events that arrive while a DAG is paused. So it is not
    # paused.
    dags = [_reembed(spec, spec_path, f"reembed_{spec.graph}", timetable, paused=False)]
    if spec.nights.calendar is not None:
        dags.append(_reembed(spec, spec_path, f"nightly_{spec.graph}", _timetable(spec.nights.calendar, spec_path)))
    return [apply(spec, dag, spec_path) for dag in (*dags, *upkeep_dags(spec, spec_path), *_search(spec, spec_path))]


def _search(spec: GraphSpec, spec_path: Path) -> list[DAG]:
    """Make the DAG of the spec's search, if it has one.

    The nights do not need it, so a wrong space breaks this DAG alone.
    """
    if spec.tune is None:
        return []
    try:
        return [tune_dag(spec, spec_path)]
    except ConfigError as error:
        return [broken_dag(spec_path, str(error), f"tune_{spec.graph}")]


def _timetable(calendar: Calendar, spec_path: Path) -> CronPartitionTimetable:
    timetable = CronPartitionTimetable(
        calendar.cron, timezone=calendar.timezone, run_offset=calendar.offset, key_format=calendar.key_format
    )
    try:
        timetable.validate()
    except AirflowTimetableInvalid as error:
        raise ConfigError(f"{spec_path}: nights.calendar.cron: {error}") from None
    return timetable


def _reembed(
    spec: GraphSpec, spec_path: Path, dag_id: str, schedule: BaseTimetable, *, paused: bool | None = None
) -> DAG:
    """Make a DAG of the whole chain.

    A new DAG is paused as given, or by Airflow's settings (None).
    """
    edges, refused, few = edges_asset(spec), Alert(spec, "refused"), spec.airflow.few_tasks
    with DAG(
        dag_id=dag_id,
        description=f"Embed graph {spec.graph} anew for each snapshot of its edges",
        doc_md=documentation(spec, spec_path),
        schedule=schedule,
        catchup=False,
        is_paused_upon_creation=paused,
        default_args=DEFAULTS
        | {"graph": spec.graph, "snapshots": spec.snapshots.location, "columns": spec.columns.model_dump()},
        max_active_runs=_at_once(spec.nights),
        tags=["reembed", spec.graph],
        **on_failure(spec),
        **deadline(spec),
    ) as dag:
        with TaskGroup("prepare", tooltip="From a snapshot to numbered entities and edge buckets"):
            plan = PlanOperator(
                task_id="plan",
                spec=str(spec_path.resolve()),
                patience=timedelta(hours=spec.nights.patience_hours),
                store=spec.store,
                source=spec.snapshots.model_dump_json(exclude_defaults=True),
                inlets=[edges],
                refused=refused,
            )
            prepare = [plan, *_preparation(spec)]
        with TaskGroup("train", tooltip="From edge buckets to a kept version"):
            train = [_training(spec), *([] if few else [_task("preserve", refused=refused)])]
        with TaskGroup("release", tooltip="From a kept version to what readers see"):
            judge = (
                []
                if few
                else [
                    _task("eval", refused=refused, **_pod(spec, "eval")),
                    _task("drift", refused=refused, **_pod(spec, "drift")),
                    _gate(spec, "gate"),
                ]
            )
            publish = _publication(spec, inlets=[edges])
        exports = _exports(spec)
        # A run that is not to be published skips `publish` and exports, and it has succeeded all the same.
        summary = PbgOperator(task_id="summary", command="show", arguments=[RUN, "--log"], trigger_rule="none_failed")
        dag.add_result(summary.output)

        last = [summary, _report(), *_promotion(spec, spec_path)]
        chain(*prepare, *train, *judge, publish, *([exports] if exports else []))
        ends: list[PbgOperator] = [*exports] if exports else [publish]
        for before in ends:  # a list does not follow a list of another length in a chain
            before >> last
    # Set only now, because each task that is made in a DAG with a form carries a copy of the form, which was two thirds
    # of a stored DAG.
    dag.params.update(trigger_form(spec))
    return dag


def _at_once(nights: Nights) -> int:
    return max(nights.parallel, WAITING) if nights.walk == "chain" else nights.parallel


def _task(command: str, *, task_id: str | None = None, **kwargs: Any) -> PbgOperator:  # noqa: ANN401 - BaseOperator's
    return PbgOperator(task_id=task_id or command, command=command, arguments=[RUN], **kwargs)


def _preparation(spec: GraphSpec) -> list[PbgOperator]:
    """Make the tasks between plan and training."""
    refused = Alert(spec, "refused")
    if spec.airflow.few_tasks:
        more = _named("prepare") | _pod(spec, "prepare")
        return [_task("prepare", refused=refused, warned=Alert(spec, "warned"), **more)]
    bucket = _task("bucket", refused=refused, **_pod(spec, "bucket"))
    return [_gate(spec, "validate"), _gate(spec, "partition"), bucket]


def _pod(spec: GraphSpec, name: str) -> dict[str, Any]:
    """Return the arguments of a task that is a pod.

    There are none for another.
    """
    launch = spec.launch.tasks.get(name)
    return {} if launch is None else {"kubernetes": launch}


def _publication(spec: GraphSpec, inlets: list[Asset]) -> PublishOperator:
    """Make the task that publishes.

    With few tasks, it does all that follows the training.
    """
    given: dict[str, Any] = {
        "arguments": [RUN],
        "asset": channel_asset(spec),
        "inlets": inlets,
        "refused": Alert(spec, "refused"),
        "told": Alert(spec, "published"),
    }
    if spec.airflow.few_tasks:
        warned = Alert(spec, "warned")
        given |= _named("finish") | _pod(spec, "finish")
        return FinishOperator(task_id="finish", facts=FACTS_OF_FEW, warned=warned, **given)
    return PublishOperator(task_id="publish", facts=FACTS, **given)


def _named(command: str) -> dict[str, str]:
    """Return the name by which pages show a task that does several."""
    return {"task_display_name": ", ".join(TOGETHER[command])}


def _promotion(spec: GraphSpec, spec_path: Path) -> list[PromoteOperator]:
    """Make the task that promotes releases by the spec's rules.

    Without rules there is none. It also runs where the night's release was announced before, and was perhaps not
    promoted.
    """
    if spec.promote is None or not spec.promote.is_automatic:
        return []
    place, asset = str(spec_path.resolve()), readers_asset(spec)
    return [PromoteOperator(task_id="promote", spec=place, asset=asset, trigger_rule="none_failed")]


def _report() -> ReportOperator:
    return ReportOperator(task_id="report", arguments=[RUN_IF_ANY])


def _gate(spec: GraphSpec, command: str) -> PbgOperator:
    refused, warned = Alert(spec, "refused"), Alert(spec, "warned")
    if spec.gates.on_failure == "fail":
        return _task(command, refused=refused, warned=warned, **_pod(spec, command))
    given: dict[str, Any] = {"task_id": command, "command": command, "arguments": [RUN]}
    return ApprovalGateOperator(
        **given, **_pod(spec, command), refused=refused, warned=warned, hours=spec.gates.ask_hours
    )


def _training(spec: GraphSpec) -> PBGTrainJobOperator:
    launch = spec.launch
    return PBGTrainJobOperator(
        task_id="train",
        arguments=[RUN],
        refused=Alert(spec, "refused"),
        launcher=launch.launcher,
        ranks=f"{{{{ params.ranks or {launch.ranks} }}}}",
        partition_servers=max(spec.model.num_partition_servers, 0),
        max_restarts=launch.max_restarts,
        kubernetes=launch.kubernetes,
        deferrable=launch.kubernetes is not None and launch.kubernetes.deferrable,
        # Experiments and days that are done again do not wait, and more runs may be under way than may train.
        max_active_tis_per_dag=spec.nights.parallel if spec.nights.walk == "chain" else None,
    )


def _exports(spec: GraphSpec) -> list[ExportOperator]:
    """Make a task for each export of the spec.

    They do not wait for each other.
    """
    if not spec.exports:
        return []
    with TaskGroup("exports", tooltip="The release in the formats of other tools"):
        return [
            ExportOperator(
                task_id=export.name,
                arguments=[RUN, export.name],
                export=export.task,
                snapshot=FACTS["snapshot"],
                published=PUBLISHED_OF_FEW if spec.airflow.few_tasks else PUBLISHED,
                asset=export_asset(spec, export),
                **_pod(spec, "export"),
            )
            for export in spec.exports
        ]


def _readers(spec: GraphSpec) -> str:
    return "" if spec.promote is None else f", promoted to `{spec.promote.to}`"


def documentation(spec: GraphSpec, spec_path: Path) -> str:
    """Return the text of the DAG's page."""
    model = spec.model
    entities = (f"{name} ({entity.written_partitions} partitions)" for name, entity in model.entities.items())
    return f"""
Embeds graph **{spec.graph}** ({spec_path.name}) anew for each snapshot of its edges.

| | |
|---|---|
| snapshots | `{spec.snapshots.location}` |
| store | `{spec.store}`, channel `{spec.channel}`{_readers(spec)} |
| entities | {", ".join(entities)} |
| model | dimension {model.dimension}, {model.comparator}, {model.loss_fn}, {model.num_epochs} epochs |
| gate | filtered MRR at least {spec.gates.min_mrr}, falling at most {spec.gates.max_mrr_drop:.0%} |

Begin a night from the tab **Nights**, which lists the snapshots that are there; or trigger the DAG with *Snapshot* in
the form, or with a **partition key**, the snapshot's (*Trigger > Advanced Options*). An event of asset
`{spec.graph}_edges` with a partition key starts `reembed_{spec.graph}` too, unless that is paused: then Airflow drops
the event. So pause what begins nights, not `reembed_{spec.graph}`. An empty field of the form means: as the spec says.
A run with changed training is a trial: it is published only if the form asks for it. The task `summary` returns all
figures of the run.
"""
