"""A night in a DAG of one's own, run and shown.

It takes a minute, so it runs only where ``PBG_E2E_NIGHTS`` is set: ``make e2e-nights``.
"""

from __future__ import annotations

import os

import pytest

from tests.airflow_home import use_private_airflow

use_private_airflow()

from sqlalchemy import select  # noqa: E402 - Airflow's home is chosen first

from tests.tasks.conftest import ring  # noqa: E402

DAG_FILE = """
from pathlib import Path

from airflow.sdk import DAG, task
from pbg_operators import PbgTaskGroup

with DAG("shop", schedule=None, default_args={"retries": 0}) as dag:

    @task
    def export_edges() -> str:
        return "d1"

    @task
    def load_vectors(figures: dict) -> str:
        return figures["run"]

    night = PbgTaskGroup(Path(__file__).parent / "graph.yaml", snapshot=export_edges(), group_id="night")
    night >> load_vectors(night.summary.output)
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif("PBG_E2E_NIGHTS" not in os.environ, reason="takes a minute; set PBG_E2E_NIGHTS to run it")
def test_group_publishes_and_pages_find_it(tmp_path, place):
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.asset import AssetEvent
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from fastapi.testclient import TestClient

    place.snapshot("d1", ring(40))
    place.write_spec(airflow={"few_tasks": True, "tags": ["shops"]})
    (tmp_path / "shop.py").write_text(DAG_FILE)
    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    bag = DagBag(tmp_path / "shop.py")
    assert bag.import_errors == {}
    sync_bag_to_db(bag, bundle_name="tests", bundle_version=None)
    run = bag.dags["shop"].test()
    states = {ti.task_id: ti.state for ti in run.get_task_instances()}
    assert len(states) == 8
    assert set(states.values()) == {"success"}
    assert place.channel().current().release.seq == 1
    with create_session() as session:
        (event,) = session.scalars(select(AssetEvent)).all()
        assert (event.asset.name, event.extra["release"], event.partition_key) == ("toy_production", 1, "d1")
    client = TestClient(create_app())
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="u", role="ADMIN"))
    for path in (f"/dags/shop/runs/{run.run_id}", "/dags/shop"):
        answer = client.get(f"/pbg{path}", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        assert "d1" in answer.text
