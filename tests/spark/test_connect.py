"""Preparation in sessions of a real server of Spark Connect."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pbg_tasks.errors import StorageError
from pbg_tasks.prepare.spark import session
from tests.spark.servers import free_port

pytestmark = [pytest.mark.timeout(1800), pytest.mark.rotated(3)]  # two nights take four minutes of two CPUs
SEED = 39
"""Of a graph with weights, relations from the data, entities that expire, and a sample of edges for delta epochs."""


@pytest.mark.usefixtures("spark")
def test_nights_through_server_have_bytes_of_duckdb(monkeypatch):
    """A process has sessions of Spark Connect or of Spark, not both."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    command = [sys.executable, "-m", "tests.two_engines", "--edges", "300", "--seed", str(SEED), "--engine", "connect"]
    command += ["--rows", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert ", 0 different" in done.stdout


@pytest.mark.usefixtures("spark")
def test_server_that_does_not_answer_is_named(monkeypatch):
    port = free_port()
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{port}")
    monkeypatch.setattr(session, "_PATIENCE", 2)
    refused = rf"no server answers at 127\.0\.0\.1:{port} within 2 s; check SPARK_REMOTE"
    with pytest.raises(StorageError, match=refused), session.open_tables("none"):
        pytest.fail("opened")
