"""The exports of a spec as tasks and assets."""

from __future__ import annotations

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.dags.parsed import DAGS, stored
from tests.operators.specs import spec_file

EXPORTS = [
    {"format": "parquet"},
    {"format": "faiss", "name": "ann", "destination": "s3://bucket/ann/{run}"},
    {"format": "lancedb", "options": {"keep": 2}},
    {"format": "pgvector", "destination": "postgresql://db/vectors?sslmode=require"},
]


@pytest.fixture
def dag(tmp_path, monkeypatch):
    (tmp_path / "graphs").mkdir()
    spec_file(tmp_path / "graphs", tmp_path, "small", exports=EXPORTS)
    monkeypatch.setenv("PBG_GRAPHS", str(tmp_path / "graphs"))
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    return bag.dags["reembed_small"]


def test_each_export_follows_release_only(dag):
    for name in ("parquet", "ann", "lancedb", "pgvector"):
        task = dag.get_task(f"exports.{name}")
        assert task.upstream_task_ids == {"release.publish"}
        assert "summary" in task.downstream_task_ids
        assert task.arguments[1] == name
        assert task.trigger_rule == "none_failed"  # `publish` is skipped for a release that was announced before
    assert dag.get_task("summary").upstream_task_ids == {
        "exports.parquet",
        "exports.ann",
        "exports.lancedb",
        "exports.pgvector",
    }


def test_each_export_is_an_asset(dag, tmp_path):
    (parquet,) = dag.get_task("exports.parquet").outlets
    (ann,) = dag.get_task("exports.ann").outlets
    assert (parquet.name, parquet.uri) == (
        "small_production_parquet",
        f"file://{tmp_path}/store/small/exports/parquet?channel=production&export=parquet&graph=small",
    )
    assert (ann.name, ann.uri) == (
        "small_production_ann",
        "s3://bucket/ann?channel=production&export=ann&graph=small",
    )
    (lance,) = dag.get_task("exports.lancedb").outlets
    assert lance.uri == f"file://{tmp_path}/store/small/sinks/lancedb?channel=production&export=lancedb&graph=small"
    (pgvector,) = dag.get_task("exports.pgvector").outlets
    assert pgvector.uri.startswith("pgvector+postgresql://db/vectors?")


def test_dag_survives_serialisation(dag):
    assert {"exports.parquet", "exports.ann"} <= set(stored(dag).task_ids)
