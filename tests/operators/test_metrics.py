"""Figures of tasks as metrics, in backends of Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk._shared.observability.metrics import stats as shared
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from pbg_operators import metrics
from pbg_operators.internals import Stats
from pbg_operators.task import PbgOperator, Refused
from pbg_tasks.config.results import SHAPES, TaskResult, has_key
from pbg_tasks.errors import QualityGateError
from tests.metrics_backends import OtlpReceiver, StatsdListener

RUN = "s3://bucket/graphs/g/runs/day-0123456789ab"
TAKEN = {"cpu_seconds": 2.0, "memory_bytes": 5000, "store_bytes_read": 100, "store_bytes_written": 10}
EVALUATED = {
    "task": "eval",
    "seconds": 1.5,
    "usage": TAKEN,
    "filtered": {"count": 10, "mrr": 0.25, "hits1": 0.125, "hits10": 0.5},
    "against": {"difference": {"mrr": -0.03125}},
}
DRIFTED = {"seconds": 1, "types": {"user": {"cosine": {"mean": 0.75}, "overlap": {"mean": None}}}}
SEND = """
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
from pbg_operators import metrics

stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
metrics.send("g", "eval", {"filtered": {"mrr": 0.25}})
"""
DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"


@pytest.fixture
def backend(monkeypatch):
    """Let Airflow choose its backend by settings, as its task runner does."""

    def choose(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", value)
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)

    yield choose
    if (statsd := getattr(shared._backend, "statsd", None)) is not None:
        statsd.close()
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


@pytest.fixture
def statsd(backend):
    with StatsdListener() as listener:
        backend(statsd_on="True", statsd_host="127.0.0.1", statsd_port=str(listener.port), statsd_prefix="airflow")
        yield listener


@pytest.mark.parametrize("task", sorted(metrics.FIGURES))
def test_figure_is_a_key_of_results(task):
    for path in metrics.FIGURES[task].values():
        model = path[:-1] if path[-2:-1] == ("difference",) else path  # by name, any of which a result may have
        assert has_key(SHAPES[task], *model), path


@pytest.mark.parametrize("path", metrics.OF_EVERY_TASK.values())
def test_figure_of_every_task_is_a_key(path):
    assert has_key(TaskResult, *path)


def test_plain_statsd_gets_graph_and_task_in_names(statsd):
    metrics.send("my.graph", "eval", EVALUATED)
    metrics.send("my.graph", "drift", DRIFTED)
    assert statsd.gauges(12) == {
        "airflow.pbg.my_graph.eval.seconds": 1.5,
        "airflow.pbg.my_graph.eval.cpu_seconds": 2.0,
        "airflow.pbg.my_graph.eval.memory_bytes": 5000.0,
        "airflow.pbg.my_graph.eval.store_bytes_read": 100.0,
        "airflow.pbg.my_graph.eval.store_bytes_written": 10.0,
        "airflow.pbg.my_graph.eval.mrr": 0.25,
        "airflow.pbg.my_graph.eval.hits1": 0.125,
        "airflow.pbg.my_graph.eval.hits10": 0.5,
        "airflow.pbg.my_graph.eval.mrr_change": -0.03125,
        "airflow.pbg.my_graph.drift.seconds": 1.0,
        "airflow.pbg.my_graph.drift.user.cosine": 0.75,
    }


def test_fall_of_mrr_is_below_zero(statsd):
    """StatsD subtracts a negative value, so a 0 goes before it."""
    metrics.send("g", "eval", EVALUATED | {"filtered": {}, "usage": None, "seconds": None})
    assert statsd.lines(2) == ["airflow.pbg.g.eval.mrr_change:0|g", "airflow.pbg.g.eval.mrr_change:-0.03125|g"]


def test_opentelemetry_gets_tags():
    """Send the metrics at the end of this process.

    A task's process does the same.
    """
    with OtlpReceiver() as receiver:
        settings = {"OTEL_ON": "True", "OTEL_HOST": "127.0.0.1", "OTEL_PORT": str(receiver.port)}
        environment = os.environ | {f"AIRFLOW__METRICS__{name}": value for name, value in settings.items()}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "NO_PROXY": "127.0.0.1"}
        subprocess.run([sys.executable, "-c", SEND], env=environment, check=True, capture_output=True, timeout=60)
    assert receiver.gauges["airflow.pbg.mrr"] == (0.25, {"graph": "g", "task": "eval"})


@pytest.mark.parametrize("figures", [{}, {"seconds": None}, {"filtered": "x"}, {"usage": [1]}])
def test_figure_that_is_missing_is_left_out(figures):
    assert list(metrics.figures("eval", figures)) == []


def test_command_sends_its_figures(fake_pbg, context, statsd):
    fake_pbg(f"print({json.dumps(EVALUATED)!r})")
    task = {"task_id": "t", "command": "eval", "arguments": [RUN], "store_conn_id": None}
    PbgOperator(**task, graph="g").execute(context)
    assert statsd.gauges(10)["airflow.pbg.g.eval.mrr"] == 0.25


def test_refusal_is_counted(fake_pbg, context, statsd):
    fake_pbg(f"sys.exit({QualityGateError.exit_code})")
    task = PbgOperator(task_id="t", command="gate", arguments=[RUN], store_conn_id=None, graph="g")
    with pytest.raises(Refused):
        task.execute(context)
    assert statsd.lines(1) == ["airflow.pbg.g.gate.refused:1|c"]


def test_backend_that_fails_fails_no_task(fake_pbg, context, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no backend")

    monkeypatch.setattr(Stats, "gauge", fail)
    fake_pbg(f"print({json.dumps(EVALUATED)!r})")
    task = PbgOperator(task_id="t", command="eval", arguments=[RUN], store_conn_id=None, graph="g")
    assert task.execute(context) == EVALUATED


def test_dashboard_shows_metrics_that_are_sent():
    sent = {name for found in metrics.FIGURES.values() for name in found} | set(metrics.OF_EVERY_TASK)
    sent |= {*metrics.OF_TYPES, metrics.REFUSED}
    shown = {
        target["expr"].partition("airflow_pbg_")[2].partition("{")[0].removesuffix("_total")
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    }
    assert shown <= sent
    assert {"mrr", "seconds", "refused", "cosine", "store_bytes_read"} <= shown
