"""DAGs and commands of tasks in the process of the test."""

from __future__ import annotations

from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from typer.testing import CliRunner

from pbg_operators.task import PbgOperator, parse_result
from pbg_tasks.cli import app
from tests.dags.parsed import DAGS
from tests.operators.specs import spec_file
from tests.tasks.conftest import SMALL_GRAPH, ring


def run_here(self, environment, command, arguments):
    """Run a command in this process, which saves most of the time."""
    done = CliRunner().invoke(app, [command, *arguments, "--json"], env=environment)
    if done.exception is not None:
        raise done.exception
    return parse_result(command, done.stdout)


def store_dags(bag):
    """Create Airflow's database if missing, and store the DAGs there."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    sync_bag_to_db(bag, bundle_name="tests", bundle_version="1")


def stored_dag(name):
    """Return a DAG of the package's file, stored in Airflow's database."""
    bag = DagBag(DAGS)
    store_dags(bag)
    return bag.dags[name]


def states_of_night(tmp_path, monkeypatch, graph, **keys):
    """Run a night of a graph, a ring.

    All tests share Airflow's database, so each names a graph of its own.

    Returns:
        State of each task, by its id and map index.
    """
    (tmp_path / "graphs").mkdir()
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "graphs"))
    monkeypatch.setattr(PbgOperator, "_run", run_here)
    rows = ["lhs\trel\trhs", *(f"{lhs}\tlikes\t{rhs}" for lhs, _, rhs in ring(60))]
    (tmp_path / "d1.tsv").write_text("\n".join(rows) + "\n")
    snapshots = {"location": f"{tmp_path}/{{snapshot}}.tsv", "format": "tsv"}
    spec_file(tmp_path / "graphs", tmp_path, graph, gates=SMALL_GRAPH, snapshots=snapshots, **keys)
    run = stored_dag(f"reembed_{graph}").test(run_conf={"snapshot": "d1"})
    return {(each.task_id, each.map_index): str(each.state) for each in run.get_task_instances()}
