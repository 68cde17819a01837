"""DAGs of one graph's nights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, PartitionedAssetTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid

from pbg_operators.alerts import check_notifiers, deadline, on_failure
from pbg_operators.assets import edges_asset
from pbg_operators.broken import broken_dag
from pbg_operators.form import trigger_form
from pbg_operators.night import Night
from pbg_operators.settings import apply, defaults, facts
from pbg_operators.timetable import SnapshotTimetable
from pbg_operators.tune import tune_dag
from pbg_operators.upkeep import collect_dag, upkeep_dags
from pbg_tasks.config import load_graph_spec
from pbg_tasks.config.airflow import NIGHTS_TAG
from pbg_tasks.config.nights import Calendar
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pbg_tasks.config import GraphSpec

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
    dags = [night_dag(spec, spec_path, f"reembed_{spec.graph}", schedule=timetable, is_paused_upon_creation=False)]
    if spec.nights.calendar is not None:
        calendar = timetable_of(spec.nights.calendar, f"{spec_path}: nights.calendar.cron")
        dags.append(night_dag(spec, spec_path, f"nightly_{spec.graph}", schedule=calendar))
    others = [*upkeep_dags(spec, spec_path), *_collection(spec, spec_path), *_search(spec, spec_path)]
    for dag in others:
        apply(spec, dag.tasks, spec_path)
        dag.tags |= {*spec.airflow.tags}
    return [*dags, *others]


def _collection(spec: GraphSpec, spec_path: Path) -> list[DAG]:
    """Make the DAG that collects old releases, if there is one.

    The nights do not need it, so a wrong schedule breaks this DAG alone.
    """
    collect = spec.nights.collect
    if collect is None:
        return []
    try:
        timetable_of(Calendar(cron=collect.cron), f"{spec_path}: nights.collect.cron")
    except ConfigError as error:
        return [broken_dag(spec_path, str(error), f"collect_{spec.graph}")]
    return [collect_dag(spec, collect)]


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


def timetable_of(calendar: Calendar, where: str) -> SnapshotTimetable:
    """Return the timetable whose runs have snapshots as partition keys.

    Raises:
        ConfigError: ``cron`` is wrong; the message begins with ``where``.
    """
    timetable = SnapshotTimetable(
        calendar.cron, timezone=calendar.timezone, run_offset=calendar.offset, key_format=calendar.key_format
    )
    try:
        timetable.validate()
    except AirflowTimetableInvalid as error:
        raise ConfigError(f"{where}: {error}; write a cron text such as '0 2 * * *'") from None
    return timetable


def night_dag(
    spec: GraphSpec,
    spec_path: Path,
    dag_id: str,
    *,
    default_args: Mapping[str, Any] | None = None,
    tags: Collection[str] = (),
    params: Mapping[str, Any] | None = None,
    on_failure_callback: Any = (),  # noqa: ANN401 - DAG's own
    **arguments: Any,  # noqa: ANN401 - DAG's own
) -> DAG:
    """Make a DAG of the whole chain.

    Args:
        spec: of the graph.
        spec_path: path of its file.
        dag_id: of the DAG.
        default_args: of tasks; the spec's section ``airflow`` goes before them.
        tags: of the DAG, beside those of the spec.
        params: of the DAG, beside the form of a night.
        on_failure_callback: of the DAG, beside the spec's notifiers.
        **arguments: of ``DAG``, in place of those that nights have.
    """
    given: dict[str, Any] = {
        "schedule": None,
        "description": f"Embed graph {spec.graph} anew for each snapshot of its edges",
        "doc_md": documentation(spec, spec_path),
        "catchup": False,
        "max_active_runs": max(spec.nights.parallel, WAITING if spec.nights.walk == "chain" else 1),
        **deadline(spec),
    }
    callbacks = on_failure_callback if isinstance(on_failure_callback, list | tuple) else [on_failure_callback]
    with DAG(  # noqa: AIR002 - the schedule is among the arguments
        dag_id=dag_id,
        default_args=defaults(spec) | facts(spec) | dict(default_args or {}),
        tags=[NIGHTS_TAG, spec.graph, *spec.airflow.tags, *tags],
        on_failure_callback=[on_failure(spec)["on_failure_callback"], *callbacks],
        **given | arguments,
    ) as dag:
        night = Night(spec, spec_path)
        dag.add_result(night.summary.output)
    # Set only now, because each task that is made in a DAG with a form carries a copy of the form, which was two thirds
    # of a stored DAG.
    dag.params.update(trigger_form(spec, dag_id) | dict(params or {}))
    apply(spec, dag.tasks, spec_path)
    return dag


def documentation(spec: GraphSpec, spec_path: Path) -> str:
    """Return the text of the DAG's page."""
    model = spec.model
    readers = "" if spec.promote is None else f", promoted to `{spec.promote.to}`"
    entities = (f"{name} ({entity.written_partitions} partitions)" for name, entity in model.entities.items())
    return f"""
Embeds graph **{spec.graph}** ({spec_path.name}) anew for each snapshot of its edges.

| | |
|---|---|
| snapshots | `{spec.snapshots.location}` |
| store | `{spec.store}`, channel `{spec.channel}`{readers} |
| entities | {", ".join(entities)} |
| model | dimension {model.dimension}, {model.comparator}, {model.loss_fn}, {model.num_epochs} epochs |
| gate | filtered MRR at least {spec.gates.min_mrr}, falling at most {100 * spec.gates.max_mrr_drop:g} % |

Begin a night from the tab **Nights**, which lists the snapshots that are there; or trigger the DAG with *Snapshot* in
the form, or with a **partition key**, the snapshot's (*Trigger > Advanced Options*). An event of asset
`{spec.graph}_edges` with a partition key starts `reembed_{spec.graph}` too, unless that is paused: then Airflow drops
the event. So pause what begins nights, not `reembed_{spec.graph}`. An empty field of the form means: as the spec says.
A run with changed training is a trial: it is published only if the form asks for it. The task `summary` returns all
figures of the run.
"""
