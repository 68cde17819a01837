"""Nights of a small graph through a real Airflow, with few tasks.

The same nights with a task for each step stand beside them. They take minutes, so they run only where
``PBG_E2E_NIGHTS`` is set: ``make e2e-nights``.
"""

from __future__ import annotations

import datetime as dt
import os

import pytest

from examples.stack.stack import Stack
from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.storage import open_store
from tests.operators.specs import spec_file
from tests.stack.backfills import until
from tests.stack.conftest import edges

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(60 * 60),
    pytest.mark.skipif("PBG_E2E_NIGHTS" not in os.environ, reason="takes minutes; set PBG_E2E_NIGHTS to run it"),
]

BUCKET = "small"
ENTITIES = 2000
"""Six edges begin at each of them."""
DAYS = ("d1", "d2", "d3")
MANY, FEW = "many", "few"


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A running stack with one graph twice, once with few tasks."""
    directory = tmp_path_factory.mktemp("few")
    graphs = directory / "graphs"
    graphs.mkdir()
    for graph in (MANY, FEW):
        snapshots = {"location": f"s3://{BUCKET}/{graph}/{{snapshot}}/*.parquet"}
        spec_file(graphs, f"s3://{BUCKET}", graph, airflow={"few_tasks": graph == FEW}, snapshots=snapshots)
    stack = Stack(directory, graphs=graphs)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in stack.start_store(BUCKET).items():
                patch.setenv(name, value)
            store = open_store(f"s3://{BUCKET}")
            for at, day in enumerate(DAYS):
                for graph in (MANY, FEW):
                    store.put(f"{graph}/{day}/edges.parquet", edges(range(at, ENTITIES + at)))
            stack.start_airflow(print)
            yield stack
    finally:
        stack.stop()


def test_night_of_few_tasks_takes_less_time(stack):
    api = stack.airflow().api
    until("the DAGs are read", lambda: {f"reembed_{MANY}", f"reembed_{FEW}"} <= set(api.dag_ids()), api.import_errors)
    seconds = {MANY: [], FEW: []}
    tasks = {}
    for day in DAYS:
        for graph, found in seconds.items():  # in turn, so that a busy machine slows both
            dag = f"reembed_{graph}"
            run = api.trigger(dag, partition_key=day)
            until("the night ends", lambda dag=dag, run=run: api.run_state(dag, run) in {"success", "failed"})
            assert api.run_state(dag, run) == "success"
            (listed,) = [each for each in api.runs(dag) if each["dag_run_id"] == run]
            begin, end = (dt.datetime.fromisoformat(listed[name]) for name in ("start_date", "end_date"))
            found.append((end - begin).total_seconds())
            tasks[graph] = {each.task.rpartition(".")[2]: each.seconds for each in api.tasks(dag, run)}
    for graph, found in seconds.items():
        own = sum(each or 0 for each in tasks[graph].values())
        print(f"{graph}: nights of {[round(each, 1) for each in found]} s; tasks of the last one: {own:.1f} s")  # noqa: T201 - the figures of docs/airflow.md
    together = {name for names in TOGETHER.values() for name in names}
    assert together <= set(tasks[MANY])
    assert set(tasks[FEW]) == set(tasks[MANY]) - together | set(TOGETHER)
    assert sum(seconds[FEW]) < sum(seconds[MANY])
