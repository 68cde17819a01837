"""A task's context without an Airflow server.

The ``pbg`` command is made of a few lines of Python.
"""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow_home import use_private_airflow

use_private_airflow()

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TaskInstance:
    """Keeps the values that a task pushes."""

    dag_id, run_id, task_id, map_index = "reembed_toy", "manual__1", "gate", -1
    try_number = 1
    state = "success"

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def get_task_states(self, **of_task: object) -> dict[str, dict[str, str]]:
        """Return the state that Airflow has stored of this task."""
        assert of_task == {"dag_id": self.dag_id, "run_ids": [self.run_id], "task_ids": ["gate"], "map_index": -1}
        return {self.run_id: {self.task_id: self.state}}

    def xcom_push(self, key: str, value: object) -> None:
        """Keep a value."""
        self.pushed[key] = value

    def xcom_pull(self, key: str, **_: object) -> object:
        """Return a value that was kept."""
        return self.pushed.get(key)


@pytest.fixture
def context() -> dict[str, Any]:
    """The part of Airflow's context that an operator reads."""
    return {
        "ti": TaskInstance(),
        "params": {},
        "dag_run": SimpleNamespace(partition_key=None, run_type="manual"),
        "outlet_events": {},
    }


@pytest.fixture
def fake_pbg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the operators' ``python -m`` run the given lines.

    ``sys``, ``os``, ``json`` and ``time`` are imported.
    """
    from pbg_operators.task import PbgOperator

    def write(body: str) -> None:
        source = "import json, os, subprocess, sys, time\n" + textwrap.dedent(body)
        (tmp_path / "fake_pbg.py").write_text(source)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(PbgOperator, "module", "fake_pbg")
    return write
