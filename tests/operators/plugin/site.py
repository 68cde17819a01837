"""Airflow's API server with the pages, in-process.

The tests that import it have chosen their Airflow home before.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from uuid import uuid4

import pytest
import yaml

from pbg_operators.plugin.database import PLAN
from tests.operators.specs import small_spec

DAG = "reembed_toy"


class Site:
    """Airflow's API server with the pages, asked in-process by two users."""

    def __init__(self, folder):
        from airflow.api_fastapi.app import create_app, get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from fastapi.testclient import TestClient

        self.folder = folder
        self.client = TestClient(create_app())
        tokens = {
            role: get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="u", role=role))
            for role in ("ADMIN", None)
        }
        self.headers = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}

    def deploy(self, **spec):
        """Write the graph's spec, and let the scheduler know its DAGs."""
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        path = self.folder / "toy.yaml"
        before = yaml.safe_load(path.read_text()) if path.exists() else small_spec(self.folder, "toy")
        path.write_text(yaml.safe_dump(before | spec))
        bag = DagBag("dags")
        assert bag.import_errors == {}
        sync_bag_to_db(bag, bundle_name="tests", bundle_version=None)

    def planned(self, result):
        """Trigger the DAG, and store a result by the API."""
        run_id = f"manual__{uuid4()}"  # modules of a process share its database
        self.post(f"dags/{DAG}/dagRuns", {"dag_run_id": run_id, "logical_date": None})
        path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{PLAN}/xcomEntries"
        self.post(path, {"key": "return_value", "value": result, "map_index": -1})
        return run_id

    def post(self, path, body):
        answer = self.client.post(f"/api/v2/{path}", json=body, headers=self.headers["ADMIN"])
        assert answer.status_code in {200, 201}, answer.text

    def patch(self, path, body):
        answer = self.client.patch(f"/api/v2/{path}", json=body, headers=self.headers["ADMIN"])
        assert answer.status_code == 200, answer.text

    def get(self, path, role="ADMIN"):
        return self.client.get(f"/pbg/dags/{DAG}{path}", headers=self.headers[role])

    def details(self, dag=DAG):
        """Return details of a DAG, of which Airflow's UI makes the form.

        They have no time of the parse, which is that of the request.
        """
        answer = self.client.get(f"/api/v2/dags/{dag}/details", headers=self.headers["ADMIN"])
        assert answer.status_code == 200, answer.text
        return {name: value for name, value in answer.json().items() if name != "last_parsed"}


@contextmanager
def serving(folder, **spec):
    """Make Airflow's database, and serve the pages of a graph.

    Args:
        folder: for the graph's spec.
        spec: of the graph, beside what any has.
    """
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBG_GRAPHS", str(folder))
        patch.setenv("AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL", "0")
        logging.getLogger("alembic").setLevel(logging.WARNING)
        initdb()
        with create_session() as session:
            session.merge(DagBundleModel(name="tests"))
        site = Site(folder)
        site.deploy(**spec)
        yield site
