"""DAGs beside a graph's nights: watch, drill, and collection.

They begin nights, practise the roll-back, and remove what is old.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronTriggerTimetable

from pbg_operators.alerts import Alert, on_failure, on_lasting_failure
from pbg_operators.assets import channel_asset, edges_asset, readers_asset
from pbg_operators.form import promote_form, redo_form
from pbg_operators.promote import PromoteOperator
from pbg_operators.redo import RedoOperator
from pbg_operators.settings import WATCH_TRIES, defaults
from pbg_operators.task import GraphOperator
from pbg_operators.watch import WatchOperator, remember_task
from pbg_tasks.config.registry import FILE_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.nights import Collection, Watch


_DRILL = """
Rehearses a roll-back of graph **{graph}** every day, so that it works on the day it is needed.

The task points the channel `{channel}-drill`, which readers do not follow, to the release before the current one and
back, checks that every file of both is there, and fails when a way takes longer than five seconds. Nothing is copied
and `{channel}` is not touched. Before there are two releases it does nothing. By hand: `pbg drill {file}`; a real
roll-back is `pbg rollback {file}`.

The DAG may stay paused: nights do not depend on it.
"""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
"""Start date of ``@continuous``. Without one, its second run would have the logical date of the first, and never begin.
"""


def side_dag(
    kind: str,
    spec: GraphSpec,
    description: str,
    *,
    schedule: Any = None,  # noqa: ANN401 - DAG's own
    **arguments: Any,  # noqa: ANN401 - DAG's own
) -> DAG:
    """Make a DAG beside nights, with one run at a time."""
    return DAG(
        dag_id=f"{kind}_{spec.graph}",
        description=description,
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        tags=[kind, spec.graph],
        **{"default_args": defaults(spec), **on_failure(spec)} | arguments,
    )


def upkeep_dags(spec: GraphSpec, spec_path: Path) -> Iterator[DAG]:
    """Yield the DAGs beside a graph's nights, but that of collection."""
    yield _drill(spec, spec_path)
    if spec.nights.redo:
        yield _redo(spec, spec_path)
    if spec.promote is not None:
        yield _promote(spec, spec_path)
    if spec.nights.watch is not None:
        yield _watch(spec, spec.nights.watch)


def _watch(spec: GraphSpec, watch: Watch) -> DAG:
    """Make the DAG that always waits for the next snapshot.

    One run of it is always under way.
    """
    edges, begin = edges_asset(spec), watch.since or spec.nights.first
    about = f"Begin a night of graph {spec.graph} for each snapshot that arrives"
    with side_dag("watch", spec, about, schedule="@continuous", start_date=LONG_AGO) as dag:
        source: dict[str, JsonValue] = {"format": spec.snapshots.format, "options": spec.snapshots.options}
        arrived = WatchOperator(
            task_id="wait_for_snapshots",
            location=spec.snapshots.location,
            watch=watch,
            begin=begin,
            chain=[spec.store, spec.channel] if spec.nights.walk == "chain" else None,
            asset=edges,
            table=None if spec.snapshots.format in FILE_FORMATS else source,
            **WATCH_TRIES,
            **on_lasting_failure(spec),
        )
        remember_task(edges, begin, arrived.output)
    return dag


def _drill(spec: GraphSpec, spec_path: Path) -> DAG:
    about = f"Rehearse the roll-back of graph {spec.graph} on a channel without readers"
    page = _DRILL.format(graph=spec.graph, channel=spec.read_channel, file=spec_path.name)
    with side_dag("drill", spec, about, schedule="@daily", doc_md=page) as dag:
        GraphOperator(task_id="roll_back_and_forward", command="drill", arguments=[str(spec_path.absolute())])
    return dag


def _redo(spec: GraphSpec, spec_path: Path) -> DAG:
    about, own = f"Repeat a day of graph {spec.graph} and the released days after it", {"graph": spec.graph}
    with side_dag("redo", spec, about, params=redo_form(spec), default_args=defaults(spec) | own) as dag:
        path = str(spec_path.absolute())
        redo = RedoOperator(
            task_id="redo_from_a_day",
            spec=path,
            asset=channel_asset(spec),
            refused=Alert(spec, "refused"),
            spark=spec.launch.session,
        )
        if spec.promote is not None and spec.promote.is_automatic:  # a redone day is promoted, and this has the event
            redo >> PromoteOperator(task_id="promote", spec=path, asset=readers_asset(spec))
    return dag


def _promote(spec: GraphSpec, spec_path: Path) -> DAG:
    about = f"Let channel {spec.read_channel} of graph {spec.graph} take over a release of {spec.channel}"
    with side_dag("promote", spec, about, params=promote_form(spec)) as dag:
        PromoteOperator(
            task_id="promote_by_form", spec=str(spec_path.absolute()), asset=readers_asset(spec), by_form=True
        )
    return dag


def collect_dag(spec: GraphSpec, collect: Collection) -> DAG:
    """Make the DAG that removes old releases.

    Those that ``promote`` counts stay: with fewer, no row of nights would ever be long enough.
    """
    row = spec.promote.after_nights if spec.promote is not None else None
    about = f"Remove the releases and runs of graph {spec.graph} that nothing needs"
    schedule = CronTriggerTimetable(collect.cron, timezone="UTC")  # a text counts by [core] default_timezone
    with side_dag("collect", spec, about, schedule=schedule) as dag:
        options = {
            "keep-releases": max(collect.keep_releases, row or 0),
            "keep-days": collect.keep_days,
            "grace": collect.grace_hours,
        }
        both = dict.fromkeys((spec.channel, spec.read_channel))
        arguments = [spec.store, *(f"--channel={name}" for name in both)]
        arguments += [f"--{name}={value}" for name, value in options.items()]
        if collect.trust_clock:
            arguments.append("--trust-clock")
        GraphOperator(task_id="remove_what_nothing_needs", command="gc", arguments=arguments)
    return dag
