"""OpenLineage events of a night's tasks, as Airflow's provider sends them."""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from pbg_operators.export import ExportOperator
from pbg_operators.publish import FinishOperator, PublishOperator
from pbg_operators.task import PbgOperator, Refused
from pbg_tasks.config.graph import Columns
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.tasks.conftest import ring, workplace

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("airflow.providers.openlineage") is None,
    reason="Airflow's OpenLineage provider is not installed",
)
EDGES = 3 * 60 + 4
"""Edges of a ring of 60 entities, with an edge twice and two loops."""
COLUMNS = Columns().model_dump()


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A night that ran for real."""
    with workplace(tmp_path_factory.mktemp("night")) as place:
        place.write_spec(gates={"min_mrr": 0.001, "data": {"max_duplicates": {"warn": 0.0}}})
        rows = ring(60)
        place.snapshot("d1", [*rows, rows[0], rows[1], ("e0", "next", "e0"), ("e1", "next", "e1")])
        yield RunContext.open(run_chain(place.spec, "d1")["run"])


@pytest.fixture
def told(fake_pbg, context):
    """Run a task and return the OpenLineage event sent afterwards.

    The task finds a given result, or ends with a status.
    """
    from airflow.providers.openlineage.extractors.base import DefaultExtractor
    from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
    from openlineage.client.event_v2 import Job, Run, RunEvent
    from openlineage.client.serde import Serde

    context["outlet_events"] = {}

    def event(lineage):
        sent = []
        client = SimpleNamespace(emit=sent.append, transport=SimpleNamespace(kind="test"))
        OpenLineageAdapter(client=client).emit(
            RunEvent(
                eventTime="2026-11-20T02:00:00Z",
                run=Run(runId="01941f29-7c00-7087-9eb6-4a4b1f3b3f3a", facets=lineage.run_facets),
                job=Job(namespace="airflow", name="reembed_toy"),
                inputs=lineage.inputs,
                outputs=lineage.outputs,
            )
        )
        return json.loads(Serde.to_json(sent[0]))

    def run(task, body, *, fails_with=None):
        fake_pbg(body)
        if fails_with is None:
            task.execute(context)
            return event(DefaultExtractor(task).extract_on_complete(None))
        with pytest.raises(fails_with):
            task.execute(context)
        return event(DefaultExtractor(task).extract_on_failure(None))

    return run


def printing(result):
    return f"print({json.dumps(json.dumps(result))})"


def task_of(command, url="/s/runs/d1-0123456789ab", **kwargs):
    arguments = ["/graphs/g.yaml"] if command == "plan" else [url]
    given = {"task_id": command, "command": command, "arguments": arguments, "store_conn_id": None}
    return PbgOperator(**given, snapshots="/edges/{snapshot}.tsv", columns=COLUMNS, **kwargs)


def values(facet):
    """Return the fields of a facet, without producer and schema."""
    return {name: value for name, value in facet.items() if not name.startswith("_")}


@pytest.fixture
def after(night, told):
    """Return the facets sent after a task of the night.

    They are of the first input, of the output, and of the run.
    """

    def of(command):
        found = told(task_of(command, night.url), printing(night.result(command)))
        read, written = (found[side][0] if found[side] else {} for side in ("inputs", "outputs"))
        facets = (read.get("facets"), read.get("inputFacets"), written.get("facets"), written.get("outputFacets"))
        return [
            {name: values(facet) for name, facet in (each or {}).items()} for each in (*facets, found["run"]["facets"])
        ]

    return of


def test_snapshot_has_columns_rows_and_gate_findings(after, night):
    snapshot, reading, *_ = after("validate")
    found = night.result("validate")
    fields = {field["name"]: (field["type"], field["description"]) for field in snapshot["schema"]["fields"]}
    assert fields == {
        name: ("|".join(found["columns"][name]), said)
        for name, said in {
            "lhs": "left-hand end of an edge",
            "rel": "relation of an edge",
            "rhs": "right-hand end of an edge",
        }.items()
    }
    assert reading["inputStatistics"] == {"rowCount": EDGES}
    metrics = reading["dataQualityMetrics"]
    assert metrics == {"columnMetrics": {}, "rowCount": EDGES, "duplicates": 2, "selfLoops": 2}
    checks = {each["assertion"]: each for each in reading["dataQualityAssertions"]["assertions"]}
    assert set(checks) == {check["name"] for check in found["data_gate"]["checks"]}
    duplicates = checks["max_duplicates"]
    assert (duplicates["success"], duplicates["severity"]) == (False, "warn")
    assert float(duplicates["actual"]) == pytest.approx(2 / EDGES, abs=1e-6)
    assert "repeat an earlier one" in duplicates["description"]


def test_plan_counts_files_and_bytes(after, night):
    snapshot, reading, written, *_ = after("plan")
    assert [field["name"] for field in snapshot["schema"]["fields"]] == ["lhs", "rel", "rhs"]
    assert not any("type" in field for field in snapshot["schema"]["fields"])  # no task has read it yet
    (file,) = night.spec.files
    assert reading == {"inputStatistics": {"size": file.size, "fileCount": 1}}
    assert written == {"lifecycleStateChange": {"lifecycleStateChange": "CREATE"}}


def test_outputs_have_rows_files_bytes_and_version(after, night):
    _, reading, _, writing, _ = after("partition")
    assert writing == {"outputStatistics": {"rowCount": 60}}
    assert reading == {}  # a first night compares no entities
    edges = night.result("bucket")["edges"]
    rows = edges["train"] + edges["valid"] + edges["test"]
    assert after("bucket")[3] == {"outputStatistics": {"rowCount": rows}}
    assert after("train")[2]["version"] == {"datasetVersion": "3"}
    *_, release, writing, _ = after("preserve")
    kept = night.result("preserve")
    assert writing == {"outputStatistics": {"rowCount": 60, "size": kept["bytes"], "fileCount": kept["files"]}}
    assert release["version"] == {"datasetVersion": kept["manifest_sha256"]}
    assert release["lifecycleStateChange"] == {"lifecycleStateChange": "CREATE"}
    (entity,) = release["schema"]["fields"]
    assert (entity["name"], entity["type"]) == ("n", "STRUCT")
    vectors = {field["name"]: field["type"] for field in entity["fields"]}
    assert vectors == {"name": "VARCHAR", "vector": "FLOAT[8]"}


def test_run_of_gate_has_its_verdict(after, night):
    *_, run = after("gate")
    tests = {each["name"]: each for each in run["test"]["tests"]}
    assert set(tests) == {check["name"] for check in night.result("gate")["checks"]}
    assert tests["min_mrr"]["status"] == "pass"
    assert float(tests["min_mrr"]["actual"]) == pytest.approx(night.result("eval")["filtered"]["mrr"], abs=1e-6)
    assert float(tests["min_mrr"]["expected"]) == 0.001
    assert "severity" not in tests["min_mrr"]


def test_refusing_gate_reports_its_reasons(told, night):
    verdict = night.result("gate")
    failed = {"name": "min_mrr", "passed": False, "value": 0.1, "limit": 0.2, "sentence": "MRR 0.1", "warned": False}
    stored = {**verdict, "passed": False, "checks": [failed]}
    body = f"""
        if sys.argv[1] == "show":
            assert sys.argv[2:4] == [{night.url!r}, "--task=gate"]
            print(json.dumps(json.loads({json.dumps(stored)!r})))
        else:
            print("error: quality_gate: MRR 0.1", file=sys.stderr)
            sys.exit(8)
    """
    event = told(task_of("gate", night.url), body, fails_with=Refused)
    (test,) = event["run"]["facets"]["test"]["tests"]
    assert values(test) | {"params": {}} == {
        "name": "min_mrr", "status": "fail", "severity": "error", "description": "MRR 0.1", "expected": "0.2",
        "actual": "0.1", "params": {},
    }  # fmt: skip
    assert event["inputs"][0]["name"].endswith("/release")


def refusing(stored):
    """Return a program that refuses, and shows results by task."""
    return f"""
        if sys.argv[1] == "show":
            found = json.loads({json.dumps(stored)!r}).get(sys.argv[3].removeprefix("--task="))
            if found is None:
                sys.exit(3)
            print(json.dumps(found))
        else:
            print("error: quality_gate: too little", file=sys.stderr)
            sys.exit(8)
    """


def test_few_tasks_report_the_checks_of_all(told, night):
    found = {task: night.result(task) for task in ("validate", "partition", "bucket")}
    gone = {"name": "max_gone_entities", "passed": False, "value": 0.4, "limit": 0.35, "sentence": "40% gone"}
    partitioned = found["partition"] | {"data_gate": {"passed": False, "checks": [gone]}}
    ended = told(
        task_of("prepare", night.url), printing({"task": "prepare", "tasks": found | {"partition": partitioned}})
    )
    refused = [
        told(task_of("prepare", night.url), refusing(stored), fails_with=Refused)
        for stored in ({"validate": found["validate"]}, {"validate": found["validate"], "partition": partitioned})
    ]
    own = {check["name"] for check in found["validate"]["data_gate"]["checks"]}
    for event, names in ((ended, own | {gone["name"]}), (refused[0], own), (refused[1], own | {gone["name"]})):
        reading = event["inputs"][0]["inputFacets"]
        assert {each["assertion"] for each in reading["dataQualityAssertions"]["assertions"]} == names
        assert values(reading["inputStatistics"]) == {"rowCount": EDGES}


def test_refusing_end_of_night_moves_no_channel(told, night):
    given = {"arguments": [night.url], "store_conn_id": None, "asset": Asset(name="g", uri="s3://b/channels/c")}
    task = FinishOperator(task_id="finish", facts={}, **given)
    event = told(task, refusing({"gate": night.result("gate") | {"passed": False}}), fails_with=Refused)
    assert event["run"]["facets"]["test"]["tests"]
    (channel,) = event["outputs"]
    assert (channel["namespace"], channel.get("facets") or {}) == ("s3://b", {})


def test_unreadable_stored_verdict_leaves_the_places(told):
    event = told(task_of("gate"), "print('error: quality_gate: MRR', file=sys.stderr)\nsys.exit(8)", fails_with=Refused)
    assert [each["name"] for each in event["inputs"]] == ["/s/runs/d1-0123456789ab/release"]
    assert not event["run"].get("facets")


@pytest.mark.parametrize("result", [{}, {"edges": 7}, {"edges": None, "data_gate": 5}, {"counts": 7, "run": "/s"}])
@pytest.mark.parametrize("command", ["validate", "partition", "bucket", "train", "preserve", "gate"])
def test_result_of_other_version_leaves_the_places(told, command, result):
    event = told(task_of(command), printing(result))
    assert event["inputs"]


def test_moved_release_is_the_channels_version(told, context):
    from airflow.sdk.execution_time.context import OutletEventAccessors

    context["outlet_events"] = OutletEventAccessors()
    channel = Asset(name="g_production", uri="file:///s/channels/production")

    def publish():
        facts = {"snapshot": '"d1"'}
        return PublishOperator(
            task_id="p", arguments=["/s/runs/d1-0123456789ab"], store_conn_id=None, asset=channel, facts=facts
        )

    moved = {
        "published": True,
        "announced": False,
        "reason": "",
        "channel": "production",
        "release": 7,
        "directory": "/s/runs/r/release",
    }
    (output,) = told(publish(), printing(moved))["outputs"]
    assert (output["namespace"], output["name"]) == ("file", "/s/channels/production")
    assert values(output["facets"]["version"]) == {"datasetVersion": "7"}
    assert values(output["facets"]["lifecycleStateChange"]) == {"lifecycleStateChange": "OVERWRITE"}
    (output,) = told(publish(), printing({**moved, "published": False}), fails_with=AirflowSkipException)["outputs"]
    assert not output.get("facets")


def test_export_has_the_schema_of_its_vectors(told, context):
    from airflow.sdk.execution_time.context import OutletEventAccessors

    context["outlet_events"] = OutletEventAccessors()
    place = Asset(name="g_production_npy", uri="file:///s/exports/npy")
    task = ExportOperator(
        task_id="npy",
        arguments=["/s/runs/d1-0123456789ab", "npy"],
        store_conn_id=None,
        asset=place,
        export="export-npy",
        snapshot='"d1"',
        published="true",
    )
    types = {"n": {"rows": 3, "dimension": 2}, "m": {"rows": 4, "dimension": 5}}
    done = {"destination": "/s/exports/npy/r", "exchange": "npy", "types": types, "files": 4, "bytes": 100}
    done |= {"announced": False}
    (output,) = told(task, printing(done))["outputs"]
    assert values(output["outputFacets"]["outputStatistics"]) == {"rowCount": 7, "size": 100, "fileCount": 4}
    vectors = [field["fields"][1]["type"] for field in output["facets"]["schema"]["fields"]]
    assert vectors == ["FLOAT[2]", "FLOAT[5]"]
    assert "lifecycleStateChange" not in output["facets"]


def test_event_before_end_uses_the_spec_only():
    task = task_of("validate")
    lineage = task.get_openlineage_facets_on_start()
    assert list(lineage.inputs[0].facets) == ["schema"]
    assert not lineage.inputs[0].inputFacets
    assert not lineage.outputs[0].facets
    assert not lineage.run_facets
