"""Inputs and outputs of each task of the chain."""

from __future__ import annotations

import importlib.util
from itertools import pairwise

import pytest
from airflow.sdk import DAG, Asset

from pbg_operators.lineage import READ, WRITTEN, dataset_name, places
from pbg_operators.publish import PublishOperator
from pbg_operators.task import PbgOperator
from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.tasks.context import CHAIN

RUN = "s3://b/g/runs/2026-11-20-0123456789ab"
SNAPSHOTS = "s3://b/edges/{snapshot}/*.parquet"


def test_tasks_of_chain_read_earlier_outputs():
    assert set(CHAIN) <= set(READ)
    written = {place for task in CHAIN for place in places(task, RUN, SNAPSHOTS)[1]}
    read = {place for task in CHAIN for place in places(task, RUN, SNAPSHOTS)[0]}
    assert read - written == {"s3://b/edges/2026-11-20/*.parquet"}
    for before, after in pairwise(["partition", "bucket", "train", "preserve", "eval"]):
        assert set(places(before, RUN, SNAPSHOTS)[1]) & set(places(after, RUN, SNAPSHOTS)[0])
    assert set(WRITTEN) <= {*CHAIN, *TOGETHER}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b/g/runs/r/edges", ("s3://b", "g/runs/r/edges")),
        ("s3://b", ("s3://b", "/")),
        ("/data/g", ("file", "/data/g")),
        ("file:///data/g", ("file", "/data/g")),
        ("iceberg://lake/shop.edges/2026-11-20", ("iceberg://lake", "shop.edges/2026-11-20")),
    ],
)
def test_names_follow_openlineage(url, name):
    assert dataset_name(url) == name


def test_task_knows_its_places_by_run_and_spec():
    with DAG("d", schedule=None, default_args={"snapshots": SNAPSHOTS}):
        task = PbgOperator(task_id="bucket", command="bucket", arguments=[RUN])
        plan = PbgOperator(task_id="plan", command="plan", arguments=["/graphs/g.yaml"])
        channel = Asset(name="g", uri="s3://b/g/channels/production")
        publish = PublishOperator(task_id="publish", arguments=[RUN], asset=channel, facts={})
    assert task.lineage() == (["s3://b/edges/2026-11-20/*.parquet", f"{RUN}/entities"], [f"{RUN}/edges"])
    assert publish.lineage() == ([f"{RUN}/release"], ["s3://b/g/channels/production"])
    assert plan.lineage() == ([], [])
    plan.run_url = RUN
    assert plan.lineage() == (["s3://b/edges/2026-11-20/*.parquet"], [f"{RUN}/spec.json"])


@pytest.mark.skipif(
    importlib.util.find_spec("airflow.providers.openlineage") is None,
    reason="Airflow's OpenLineage provider is not installed",
)
def test_airflows_extractor_finds_the_lineage():
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    task = PbgOperator(task_id="bucket", command="bucket", arguments=[RUN], snapshots=SNAPSHOTS)
    found = DefaultExtractor(task).extract_on_complete(None)
    assert [(each.namespace, each.name) for each in found.inputs] == [
        ("s3://b", "edges/2026-11-20/*.parquet"),
        ("s3://b", "g/runs/2026-11-20-0123456789ab/entities"),
    ]
    assert [(each.namespace, each.name) for each in found.outputs] == [
        ("s3://b", "g/runs/2026-11-20-0123456789ab/edges")
    ]
