"""Preparation by two real executors, which write to an S3 server."""

from __future__ import annotations

import pytest
import yaml

from pbg_tasks.errors import InputError
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.tasks.nightly import on_spark
from pbg_tasks.tasks.nightly.bucket import bucket
from pbg_tasks.tasks.nightly.partition import partition
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.validate import validate
from tests.prepare.random_graphs import RandomGraph
from tests.two_engines import PARTS, by_duckdb, by_spark, compared

pytestmark = pytest.mark.timeout(1800)
PARQUET, CSV = 22, 11
"""Seeds of graphs of these formats. The first has weights, relations from the data, and a type without partitions."""


def test_nights_on_cluster_have_bytes_of_duckdb(cluster, s3_bucket, tmp_path):
    graph = RandomGraph(tmp_path / "graph", 600, PARQUET, plain=True)
    keys = [graph.write(day) for day in range(2)]
    runs = {engine: cold_night(graph, keys[0], f"{s3_bucket}/{engine}", engine) for engine in ("duckdb", "spark")}
    assert contents(runs["spark"]) == contents(runs["duckdb"])

    # The warm night goes on from what the tasks stored.
    before = {name: on_spark.stored_files(runs["spark"], open_directory(runs["spark"], name)) for name in PARTS}
    here, _ = by_duckdb(graph, keys[0], tmp_path / "duckdb", None)
    relations = read_relation_names(here / "entities")
    here, expected = by_duckdb(graph, keys[1], tmp_path / "duckdb", here)
    there, found = by_spark(graph, keys[1], s3_bucket, before | {"relations": relations})
    results = dict(compared(here, expected, there, found))
    assert len(results) > 20
    assert [name for name, equal in results.items() if not equal] == []


def cold_night(graph, key, store, engine):
    """Prepare a night by its tasks, twice each; return the run."""
    spec = graph.root / f"{engine}.yaml"
    resources = {**graph.document["resources"], "engine": engine}
    spec.write_text(yaml.safe_dump({**graph.document, "store": store, "resources": resources}))
    run = plan(spec, key)["run"]
    results = [task(run) for task in (validate, partition, bucket)]
    assert [task(run) for task in (validate, partition, bucket)] == results
    return RunContext.open(run)


def contents(run):
    """Return the files of a night, and the figures of its tasks."""
    results = [run.require(task) for task in ("validate", "partition", "bucket")]
    return (
        dict(open_directory(run, "entities").records),
        dict(open_directory(run, "edges").records),
        open_directory(run, "snapshot").records["edge_hashes.parquet"],
        [{key: value for key, value in each.items() if key not in {"run", "seconds", "usage"}} for each in results],
    )


def test_bad_row_on_cluster_is_named_by_line(cluster, s3_bucket, tmp_path):
    graph = RandomGraph(tmp_path / "graph", 600, CSV, plain=True)
    key = graph.write(0)
    bad = next((graph.root / "days" / key).glob("1.*"))
    assert bad.suffix == ".csv"
    lines = bad.read_text().splitlines(keepends=True)
    lines[17] = lines[17].replace('"r', '"unknown', 1)
    bad.write_text("".join(lines))
    spec = tmp_path / "graph.yaml"
    document = {**graph.document, "store": s3_bucket}
    document["resources"] = {**document["resources"], "engine": "spark"}
    spec.write_text(yaml.safe_dump(document))
    run = plan(spec, key)["run"]
    with pytest.raises(InputError, match=r"1\.csv, line 18: unknown relation 'unknown"):
        validate(run)
    assert not list(open_store(s3_bucket).list(f"{RunContext.open(run).key('snapshot')}/manifest.json"))
