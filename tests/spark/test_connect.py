"""Preparation in sessions of a real server of Spark Connect."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
