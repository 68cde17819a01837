"""Nights whose exports are in mapped parts."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from pbg_operators.reembed import build_dags_of
from pbg_tasks.config import load_graph_spec
from pbg_tasks.config.exports import ExportOptions, no_parts
from pbg_tasks.config.registry import EXPORTS as EXPORT_FORMATS
from pbg_tasks.config.registry import JOINED, PARTED
from pbg_tasks.errors import ConfigError
from pbg_tasks.publish.exchange import part_writer
from tests.dags.in_process import states_of_night
from tests.dags.parsed import stored
from tests.operators.specs import spec_file
from tests.tasks.exchanges import files

EXPORTS = {"exports": [{"format": "npy", "parts": 3}, {"format": "tsv"}]}
POD = {"image": f"pbg@sha256:{'0' * 64}", "resources": {"cpu": "1", "memory": "2Gi"}}


def night(tmp_path, **keys):
    path = spec_file(tmp_path, "s3://bucket/store", "g", **keys)
    return next(dag for dag in build_dags_of(path) if dag.dag_id == "reembed_g")


@pytest.mark.parametrize("few_tasks", [False, True])
def test_parts_are_mapped_between_publish_and_export(tmp_path, few_tasks):
    airflow = {"few_tasks": few_tasks, "tasks": {"exports": {"retries": 7}}}
    dag = night(tmp_path, airflow=airflow, **EXPORTS)
    part, merge = dag.get_task("exports.npy_part"), dag.get_task("exports.npy")
    assert part.upstream_task_ids == {"release.finish" if few_tasks else "release.publish"}
    assert merge.upstream_task_ids == {"exports.npy_part"}
    assert (part.retries, part.partial_kwargs["trigger_rule"]) == (7, "none_failed")
    listed = [options for _, *options in part.expand_input.value["arguments"]]
    assert listed == [["npy", "--part=1/3"], ["npy", "--part=2/3"], ["npy", "--part=3/3"]]
    assert merge.arguments[1:] == ["npy", "--parts=3"]
    assert dag.get_task("exports.tsv").arguments[1:] == ["tsv"]
    assert "exports.tsv_part" not in dag.task_ids
    assert set(stored(dag).task_ids) == set(dag.task_ids)


def test_parts_have_their_pods(tmp_path):
    part = night(tmp_path, launch={"tasks": {"export_part": POD}}, **EXPORTS).get_task("exports.npy_part")
    assert part.partial_kwargs["kubernetes"].resources["memory"] == "2Gi"


def test_spec_without_parts_has_no_key(tmp_path):
    night(tmp_path, exports=[{"format": "npy"}])
    (export,) = load_graph_spec(tmp_path / "g.yaml").exports
    assert "parts" not in export.model_dump()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"exports": [{"format": "npy", "parts": 0}]}, "exports.0.parts"),
        ({"exports": [{"format": "faiss", "parts": 2}]}, "parts is 2, and format faiss is one index a type"),
        ({"exports": [{"format": "lancedb", "parts": 2}]}, "parts is 2, and sink lancedb is filled as a whole"),
        ({"exports": [{"format": "parquet", "feast": "a", "parts": 2}]}, "parts is 2, and the option feast"),
        (
            {"exports": [*EXPORTS["exports"], {"format": "npy", "name": "npy_part"}]},
            "parts of export 'npy' have the name",
        ),
        ({"launch": {"tasks": {"export_part": POD}}}, "'export_part', which is a task with parts of an export above 1"),
    ],
)
def test_contradictions_of_parts_are_refused(tmp_path, keys, words):
    path = spec_file(tmp_path, "s3://bucket/store", "g", **keys)
    with pytest.raises(ConfigError, match=words):
        load_graph_spec(path)


@pytest.mark.rotated(4)
def test_night_with_export_in_parts_runs_in_airflow(tmp_path, monkeypatch):
    states = states_of_night(tmp_path, monkeypatch, "export_parts", exports=[{"format": "npy", "parts": 2}])
    assert states["exports.npy_part", 0] == states["exports.npy_part", 1] == states["exports.npy", -1] == "success"
    (out,) = (tmp_path / "store" / "export_parts" / "exports" / "npy").iterdir()
    manifest = json.loads((out / "_manifest.json").read_text())
    assert manifest["types"]["node"]["rows"] == 60
    assert files(out) == sorted([*manifest["objects"], "_manifest.json"])


@pytest.mark.parametrize("name", EXPORT_FORMATS.built_in)
def test_format_has_parts_only_where_its_writer_has(name, monkeypatch):
    """One without a reason of its own is refused all the same."""
    module = import_module(f"pbg_tasks.publish.exchange.{name.removesuffix('-bin').replace('-', '_')}")
    able = hasattr(module, "write_rows") if name in PARTED else hasattr(module, "write_part") and name in JOINED
    assert (no_parts(name, ExportOptions()) is None) is able
    monkeypatch.setattr("pbg_tasks.config.exports._WHOLE", {})
    if able:
        part_writer(name, ExportOptions())
    else:
        with pytest.raises(ConfigError, match=f"format {name} has no writer of parts, so it is written whole; leave"):
            part_writer(name, ExportOptions())
