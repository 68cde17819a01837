"""A double of the cluster, and a task's context.

The context has a state that outlives the task's tries.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowException

from pbg_operators.kubernetes.api import Cluster
from pbg_operators.train_job import PBGTrainJobOperator
from pbg_tasks.config import KubernetesLaunch
from tests.operators.kubernetes.double import KubernetesDouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RUN = "s3://bucket/graphs/g/runs/2026-11-20-0123456789ab"
JOB = "pbg-2026-11-20-0123456789ab"
IMAGE = f"registry.example/pbg-train@sha256:{'0' * 64}"


def launch(**changes: Any) -> KubernetesLaunch:
    section = {"image": IMAGE, "resources": {"cpu": "1", "memory": "2Gi"}, "grace_seconds": 5}
    return KubernetesLaunch(**(section | changes))


class State:
    """A task's state, as Airflow keeps it over all tries."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def get(self, key: str, default: object = None) -> object:
        return self.kept.get(key, default)

    def set(self, key: str, value: object) -> None:
        self.kept[key] = value


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubernetesDouble]:
    """Cluster of Airflow's default connection.

    Its pods find the module that ``fake_pbg`` wrote.
    """
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    with KubernetesDouble(variables) as double:
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", double.airflow_connection())
        yield double


@pytest.fixture
def surroundings(double: KubernetesDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Cluster of kubectl's file alone: Airflow has no connection."""
    monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT")
    path = double.write_kubeconfig(tmp_path / "config")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return path


@pytest.fixture
def cluster(double: KubernetesDouble) -> Cluster:
    return Cluster.connected("kubernetes_default", "default")


@pytest.fixture
def context(context: dict[str, Any]) -> dict[str, Any]:
    """The operators' context, with a named task instance and state."""
    ti = context["ti"]
    ti.dag_id, ti.run_id, ti.task_id, ti.map_index = "reembed_g", "manual__1", "train.train", -1
    return context | {"task_state_store": State(), "dag_run": SimpleNamespace(partition_key=None, run_type="manual")}


@pytest.fixture
def train(context: dict[str, Any]) -> Callable[..., object]:
    """Run one try of the task; return its result or error."""

    def run(ranks: int = 4, **changes: Any) -> object:
        try:
            return operator(ranks, **changes).execute(context)
        except AirflowException as error:
            return error

    return run


def operator(ranks: int = 4, **changes: Any) -> PBGTrainJobOperator:
    arguments = {"launcher": "kubernetes", "kubernetes": launch(), "store_conn_id": None, "interval": 0.05} | changes
    return PBGTrainJobOperator(task_id="t", arguments=[RUN], ranks=ranks, **arguments)
