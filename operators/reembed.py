"""``build_dags_of``: the nightly chain of one graph, as the DAGs that begin it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import DAG, Asset, CronPartitionTimetable, PartitionedAssetTimetable, TaskGroup, chain, task
from airflow.sdk.exceptions import AirflowTimetableInvalid

from operators.export import ExportOperator
from operators.form import trigger_form
from operators.plan import PlanOperator
from operators.publish import PublishOperator
from operators.scratch import SCRATCH, make_scratch, remove_scratch
from operators.task import GraphOperator, PbgOperator
from operators.train_job import PBGTrainJobOperator
from pbg_tasks.config import load_graph_spec
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk.bases.timetable import BaseTimetable

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.nights import Calendar

RUN = "{{ ti.xcom_pull(task_ids='prepare.plan')['run'] }}"
FACTS = {
    "snapshot": "{{ ti.xcom_pull(task_ids='prepare.plan')['snapshot'] | tojson }}",
    "mrr": "{{ ti.xcom_pull(task_ids='release.eval')['filtered']['mrr'] | tojson }}",
    "edges": "{{ ti.xcom_pull(task_ids='prepare.bucket')['edges']['total'] | tojson }}",
}
DEFAULTS: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}


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
    edges, _ = assets(spec)
    dags = [_reembed(spec, spec_path, f"reembed_{spec.graph}", PartitionedAssetTimetable(assets=edges))]
    if spec.nights.calendar is not None:
        dags.append(_reembed(spec, spec_path, f"nightly_{spec.graph}", _timetable(spec.nights.calendar, spec_path)))
    return [*dags, _drill(spec, spec_path)]


def _timetable(calendar: Calendar, spec_path: Path) -> CronPartitionTimetable:
    timetable = CronPartitionTimetable(
        calendar.cron, timezone=calendar.timezone, run_offset=calendar.offset, key_format=calendar.key_format
    )
    try:
        timetable.validate()
    except AirflowTimetableInvalid as error:
        raise ConfigError(f"{spec_path}: nights.calendar.cron: {error}") from None
    return timetable


def _reembed(spec: GraphSpec, spec_path: Path, dag_id: str, schedule: BaseTimetable) -> DAG:
    edges, embeddings = assets(spec)
    nights = spec.nights
    with DAG(
        dag_id=dag_id,
        description=f"Embed graph {spec.graph} anew for each snapshot of its edges",
        doc_md=documentation(spec, spec_path),
        schedule=schedule,
        catchup=False,
        params=trigger_form(spec),
        default_args=DEFAULTS,
        max_active_runs=nights.parallel if nights.walk == "independent" else 1,
        tags=["reembed", spec.graph],
    ) as dag:
        with TaskGroup("prepare", tooltip="From a snapshot to numbered entities and edge buckets"):
            plan = PlanOperator(
                task_id="plan",
                spec=str(spec_path.resolve()),
                patience=timedelta(hours=nights.patience_hours),
                scratch=SCRATCH,
                inlets=[edges],
            )
            prepare = [plan, *(_task(command) for command in ("validate", "partition", "bucket"))]
        with TaskGroup("train", tooltip="From edge buckets to a kept version"):
            train = [_training(spec), _task("preserve")]
        with TaskGroup("release", tooltip="From a kept version to what readers see"):
            judge = [_task(command) for command in ("eval", "gate")]
            publish = PublishOperator(
                task_id="publish", arguments=[RUN], scratch=SCRATCH, asset=embeddings, facts=FACTS, inlets=[edges]
            )
        exports = _exports(spec)
        # A run that is not to be published skips `publish` and exports; it succeeded all the same.
        summary = _task("show", task_id="summary", trigger_rule="none_failed")
        dag.add_result(summary.output)

        begin, end = task(make_scratch)().as_setup(), task(remove_scratch)().as_teardown()
        chain(begin, *prepare, *train, *judge, publish, *([exports] if exports else []), summary, end)
        begin >> end  # which makes them a pair
    return dag


def _task(command: str, *, task_id: str | None = None, **kwargs: Any) -> PbgOperator:  # noqa: ANN401 - BaseOperator's
    return PbgOperator(task_id=task_id or command, command=command, arguments=[RUN], scratch=SCRATCH, **kwargs)


def _training(spec: GraphSpec) -> PBGTrainJobOperator:
    launch = spec.launch
    return PBGTrainJobOperator(
        task_id="train",
        arguments=[RUN],
        scratch=SCRATCH,
        launcher=launch.launcher,
        ranks=f"{{{{ params.ranks or {launch.ranks} }}}}",
        partition_servers=max(spec.model.num_partition_servers, 0),
        max_restarts=launch.max_restarts,
        kubernetes=launch.kubernetes,
        deferrable=launch.kubernetes is not None and launch.kubernetes.deferrable,
    )


def _drill(spec: GraphSpec, spec_path: Path) -> DAG:
    with DAG(
        dag_id=f"drill_{spec.graph}",
        description=f"Roll a canary channel of graph {spec.graph} back and forward, and fail when it takes too long",
        schedule="@daily",
        catchup=False,
        default_args=DEFAULTS,
        max_active_runs=1,
        tags=["drill", spec.graph],
    ) as dag:
        GraphOperator(task_id="roll_back_and_forward", command="drill", arguments=[str(spec_path.resolve())])
    return dag


def _exports(spec: GraphSpec) -> list[ExportOperator]:
    """Make a task of each export of the spec; they do not wait for each other."""
    if not spec.exports:
        return []
    with TaskGroup("exports", tooltip="The release in the formats of other tools"):
        return [
            ExportOperator(
                task_id=export.name,
                arguments=[RUN, export.name],
                scratch=SCRATCH,
                snapshot=FACTS["snapshot"],
                asset=_asset(f"{spec.graph}_{spec.channel}_{export.name}", export.place(spec.store), "exports"),
            )
            for export in spec.exports
        ]


def assets(spec: GraphSpec) -> tuple[Asset, Asset]:
    """Return what a graph's DAG reads and writes: its snapshots and its channel.

    Raises:
        ConfigError: one of them is at no place that Airflow can name.
    """
    place = spec.snapshots.location.partition("{snapshot}")[0]
    channel = f"{spec.store.rstrip('/')}/channels/{spec.channel}"
    return _asset(f"{spec.graph}_edges", place, "edges"), _asset(f"{spec.graph}_{spec.channel}", channel, "embeddings")


def _asset(name: str, place: str, group: str) -> Asset:
    uri = place if urlsplit(place).scheme else Path(place).absolute().as_uri()
    try:
        return Asset(name=name, uri=uri, group=group)
    except ValueError as error:
        raise ConfigError(f"{place!r} is no place that can be an Airflow asset: {error}") from None


def documentation(spec: GraphSpec, spec_path: Path) -> str:
    """Return what the DAG's page says about it."""
    model = spec.model
    entities = (f"{name} ({entity.written_partitions} partitions)" for name, entity in model.entities.items())
    return f"""
Embeds graph **{spec.graph}** ({spec_path.name}) anew for each snapshot of its edges.

| | |
|---|---|
| snapshots | `{spec.snapshots.location}` |
| store | `{spec.store}`, channel `{spec.channel}` |
| entities | {", ".join(entities)} |
| model | dimension {model.dimension}, {model.comparator}, {model.loss_fn}, {model.num_epochs} epochs |
| gate | filtered MRR at least {spec.gates.min_mrr}, falling at most {spec.gates.max_mrr_drop:.0%} |

Trigger it with a **partition key**, the snapshot's (*Trigger > Advanced Options*), or with *Snapshot* in the form. An
event of asset `{spec.graph}_edges` with a partition key starts it too. An empty field of the form means: as the spec
says. The task `summary` returns all figures of the run.
"""
