"""The DAG file, parsed by Airflow."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError

from tests.dags.parsed import CHAIN, DAGS, REPOSITORY, parse, stored
from tests.operators.specs import small_spec, spec_file


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    folder = tmp_path / "graphs"
    folder.mkdir()
    spec_file(folder, tmp_path, "small")
    monkeypatch.setenv("PBG_GRAPHS", str(folder))
    return folder


@pytest.fixture
def dag(graphs):
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    return bag.dags["reembed_small"]


def test_shipped_graphs_are_dags(monkeypatch):
    monkeypatch.delenv("PBG_GRAPHS", raising=False)
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert "reembed_wordnet" in bag.dags
    assert not [dag_id for dag_id in bag.dags if dag_id.startswith("broken_")]


def test_broken_spec_leaves_the_others_in_place(graphs):
    (graphs / "worse.yaml").write_text("graph: 7")
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert set(bag.dags) == {"reembed_small", "drill_small", "broken_worse"}
    assert "worse.yaml" in bag.dags["broken_worse"].description


def test_tasks_follow_each_other(dag):
    assert [task.task_id for task in dag.topological_sort() if task.task_id != "report"] == CHAIN
    for before, after in pairwise(CHAIN):
        assert before in dag.get_task(after).upstream_task_ids


@pytest.fixture
def few(graphs, tmp_path):
    export = {"name": "table", "format": "parquet", "destination": str(tmp_path / "{run}")}
    spec_file(graphs, tmp_path, "small", airflow={"few_tasks": True}, exports=[export])
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    return bag.dags["reembed_small"]


def test_few_tasks_follow_each_other(few):
    chain = ["prepare.plan", "prepare.prepare", "train.train", "release.finish", "exports.table", "summary"]
    assert [task.task_id for task in few.topological_sort() if task.task_id != "report"] == chain
    for before, after in pairwise(chain):
        assert before in few.get_task(after).upstream_task_ids
    assert few.get_task("release.finish").task_display_name == "preserve, eval, drift, gate, publish"
    assert [asset.name for asset in few.get_task("release.finish").outlets] == ["small_production"]
    stored(few)


def test_few_tasks_and_people_to_ask_are_refused(graphs, tmp_path):
    gates = small_spec(tmp_path, "small")["gates"] | {"on_failure": "ask"}
    spec_file(graphs, tmp_path, "small", airflow={"few_tasks": True}, gates=gates)
    assert "each gate needs a task" in DagBag(DAGS).dags["broken_small"].description


def test_pages_are_written_after_any_outcome(dag):
    report = dag.get_task("report")
    assert report.upstream_task_ids == {"release.publish"}
    assert report.downstream_task_ids == set()
    assert report.trigger_rule == "all_done"


def test_tasks_are_retried(dag):
    assert not dag.catchup
    assert {task.retries for task in dag.tasks} == {2}
    assert {"reembed", "small"} == set(dag.tags)


def test_assets_list_inputs_and_outputs(dag, tmp_path):
    (edges,) = dag.get_task("prepare.plan").inlets
    (embeddings,) = dag.get_task("release.publish").outlets
    assert (edges.name, edges.uri) == ("small_edges", f"file://{tmp_path}/snapshots?graph=small")
    assert embeddings.name == "small_production"
    assert embeddings.uri == f"file://{tmp_path}/store/small/channels/production"
    assert dag.timetable.asset_condition == edges


def test_summary_is_the_result(dag):
    assert [task.task_id for task in dag.tasks if task.returns_dag_result] == ["summary"]


def test_run_without_publishing_succeeds(dag):
    assert dag.get_task("summary").trigger_rule == "none_failed"


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("snapshot", ["2026-11-20", "wordnet-3.0", None, "../x"], [7, True]),  # ``plan`` judges the text
        ("epochs", [1, 1000, None], [0, 1001, "3", 1.5]),
        ("dimension", [1, 4096, None], [0, 4097]),
        ("partitions", [1, 1024, None], [0, 1025]),
        ("engine", ["auto", "torch", "native", None], ["fast", ""]),
        ("ranks", [1, 256, None], [0, 257, "4"]),
        ("accept_data", ["a sale", None], ["", "x" * 501]),
        ("publish", ["auto", "yes", "no"], [None, True, False, ""]),
    ],
)
def test_form_has_limits(dag, field, good, bad):
    param = dag.params.get_param(field)
    assert {"title", "section"} <= set(param.schema)
    assert param.description or param.schema["description_md"]
    for value in good:
        assert param.resolve(value) == value
    for value in bad:
        with pytest.raises(ParamValidationError):
            param.resolve(value)


@pytest.mark.parametrize("walk", ["chain", "independent"])
def test_form_names_warm_epochs_of_chain_only(graphs, tmp_path, walk):
    spec_file(graphs, tmp_path, "small", nights={"walk": walk})
    param = DagBag(DAGS).dags["reembed_small"].params.get_param("epochs")
    assert ("1 when it continues a release" in param.description) is (walk == "chain")


def test_untouched_form_changes_nothing(dag):
    assert dag.params.dump() == {
        "snapshot": None,
        "epochs": None,
        "dimension": None,
        "partitions": None,
        "engine": None,
        "ranks": None,
        "accept_data": None,
        "publish": "auto",
    }


def test_page_names_spec_and_places(dag, tmp_path):
    assert "small.yaml" in dag.doc_md
    assert f"{tmp_path}/store/small" in dag.doc_md


def test_page_has_exact_fall_of_gate(graphs):
    path = graphs / "small.yaml"
    written = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(written | {"gates": {"max_mrr_drop": 0.025}}))
    assert "falling at most 2.5 % |" in DagBag(DAGS).dags["reembed_small"].doc_md


def test_dag_survives_serialisation(dag):
    again = stored(dag)
    assert set(again.task_ids) == {*CHAIN, "report"}
    assert again.timetable.partitioned or again.timetable.asset_condition
    assert [link.name for link in again.get_task("prepare.plan").operator_extra_links] == ["Run in store"]


def test_parsing_is_quick_and_imports_nothing_heavy(graphs):
    seconds, heavy = parse(graphs)
    assert heavy == []
    assert seconds < 1.0


def test_parsing_with_s3_imports_no_aws_sdk(graphs, tmp_path):
    asked_for = {
        "snapshots": {"location": "s3://bucket/edges/{snapshot}/*.parquet"},
        "store": "s3://bucket/graphs/remote",
        "nights": {"watch": {"complete": "success"}, "calendar": {"cron": "0 2 * * *"}},
        "exports": [{"format": "faiss", "name": "ann", "destination": "s3://bucket/ann/{run}"}],
        "gates": {"on_failure": "ask"},
    }
    spec_file(graphs, tmp_path, "remote", **asked_for)
    for folder in (graphs, REPOSITORY / "examples" / "graphs"):
        seconds, heavy = parse(folder)
        assert heavy == []
        assert seconds < 1.0
