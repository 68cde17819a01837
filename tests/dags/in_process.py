"""DAGs and commands of tasks in the process of the test."""

from __future__ import annotations

from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from typer.testing import CliRunner

from pbg_operators.task import parse_result
from pbg_tasks.cli import app
from tests.dags.parsed import DAGS


def run_here(self, environment, command, arguments):
    """Run a command in this process, which saves most of the time."""
    done = CliRunner().invoke(app, [command, *arguments, "--json"], env=environment)
    if done.exception is not None:
        raise done.exception
    return parse_result(command, done.stdout)


def stored_dag(name):
    """Return a DAG of the package's file, stored in Airflow's database."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    bag = DagBag(DAGS)
    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    sync_bag_to_db(bag, bundle_name="tests", bundle_version="1")
    return bag.dags[name]
