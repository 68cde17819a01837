"""Alert ``late``, sent by a real triggerer with a stored connection."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from airflow.models.callback import Callback
from airflow.models.connection import Connection
from airflow.utils.db import initdb
from airflow.utils.session import create_session

from pbg_operators.alerts import deadline
from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from tests.operators.specs import small_spec

pytestmark = pytest.mark.airflow

PATIENCE = 60.0


@pytest.fixture
def triggerer(tmp_path):
    """Airflow's triggerer, on the database of this process."""
    initdb()
    command = [sys.executable, "-m", "airflow", "triggerer", "--capacity=1", "--skip-serve-logs"]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=given, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        yield process
        os.killpg(process.pid, signal.SIGKILL)  # it would go on for seconds after a SIGTERM


def test_late_alert_reads_connection_of_database(tmp_path, triggerer):
    told, text = tmp_path / "told", "nightly_g: d1 was not published by 06:00"
    arguments = {"path": str(told), "text": "{{ pbg.text }}", "conn_id": "pager"}
    notifier = {"use": "tests.stack.notifier.FileNotifier", "on": ["late"], "arguments": arguments}
    spec = small_spec(tmp_path, "g") | {"nights": {"deadline": {"at": "06:00"}, "notify": [notifier]}}
    callback = Callback.create_from_sdk_def(deadline(parse(GraphSpec, spec, source="test"))["deadline"].callback)
    run = {"dag_run": {"dag_id": "nightly_g", "partition_key": "d1"}}
    with create_session() as session:
        session.add(Connection(conn_id="pager", conn_type="http", host="pager.example"))
        callback.data |= {"kwargs": callback.data["kwargs"] | {"context": run}}  # as the scheduler does at a deadline
        callback.queue(session=session)
        session.add(callback)
    until = time.monotonic() + PATIENCE
    while not (told.exists() and told.read_text()) and time.monotonic() < until and triggerer.poll() is None:
        time.sleep(0.1)
    facts = {"graph": "g", "occasion": "late", "text": text, "rendered": text, "host": "pager.example"}
    assert told.exists(), (tmp_path / "log").read_text()[-2000:]
    assert json.loads(told.read_text()) == facts
