"""``num_partitions: auto``, and ``plan``'s report on memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config import ConfigSchema, ModelConfig
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError
from pbg_tasks.prepare import bucket_sample
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.training.data.partitions import Layout
from tests.rotation import of_today
from tests.tasks.conftest import MODEL, ring

AUTO = {"entities": {"n": {"num_partitions": "auto"}}}
EDGE_BYTES = 24  # both ends and the relation
WIDE = 20_000  # numbers an entity: few entities make many bytes
REPEATED = {"data": {"max_duplicates": {}}}  # no limit: a hub drawn at random repeats its edges


def planned(place, memory_gb, model=None, snapshot="d1", engine="torch", launch=None, **options):
    resources = {"memory_gb": memory_gb, "threads": 1}
    model = {"dimension": WIDE, **AUTO, **(model or {})}
    place.write_spec(model, resources=resources, train={"engine": engine}, launch=launch or {})
    return plan(place.spec, snapshot, **options)


def test_smallest_fitting_number_is_chosen_and_stored(place):
    place.snapshot("d1", ring(3000))  # 240 MB of embeddings
    assert planned(place, 1.0)["partitions"] == {"n": 1}
    chosen = planned(place, 0.42)
    count = chosen["partitions"]["n"]
    assert count > 4  # four are in memory at once
    assert chosen["memory"]["train"]["peak"] <= 0.42e9
    fewer = planned(place, 0.42, partitions=count - 1)
    assert fewer["memory"]["train"]["peak"] > 0.42e9
    assert fewer["partitions"] == {"n": count - 1}
    spec = RunContext.open(chosen["run"]).spec
    assert spec.graph.model.entities["n"].num_partitions == count
    assert spec.graph.model.auto_partitioned == []


def test_gpu_takes_memory_of_one_worker(place):
    place.snapshot("d1", ring(3000))
    gpu, one = (planned(place, 0.42, model) for model in ({"num_gpus": 1}, {"workers": 1}))
    assert gpu["partitions"] == one["partitions"]
    assert gpu["memory"]["train"] == one["memory"]["train"]


def test_planning_again_makes_the_same_run(place):
    place.snapshot("d1", ring(3000))
    first = planned(place, 0.42)
    assert planned(place, 0.42) == first
    assert plan(place.spec, "d1", overrides=[f"model.entities.n.num_partitions={first['partitions']['n']}"]) == first


def test_machine_that_plans_has_no_influence(place, monkeypatch):
    """A plan that is repeated elsewhere has to make the same run."""
    place.snapshot("d1", ring(3000))
    model = {"workers": None}
    here = planned(place, 0.7, model, engine="auto")
    monkeypatch.setattr("pbg_tasks.native.library", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert planned(place, 0.7, model, engine="auto")["run"] == here["run"]


def test_partitions_of_rank_zero_are_forecast_for_gang(place):
    place.snapshot("d1", ring(3000))
    several = planned(place, 0.42, launch={"ranks": 2})
    part = -(-several["partitions"]["n"] // 2)
    lines = several["memory"]["train"]["lines"]
    assert lines["partitions kept for the gang"] == part * lines["embeddings in memory"] // 2
    assert planned(place, 0.42)["run"] == several["run"]


def test_ranks_that_could_never_train_are_refused(place):
    place.snapshot("d1", ring(50))
    small = {"dimension": 8, "num_epochs": 1}  # for which auto is one partition
    with pytest.raises(ConfigError, match=r"2 ranks \(launch.ranks\) cannot train at once.* num_partitions to 4"):
        planned(place, 1.0, small, launch={"ranks": 2})
    assert not (place.store / "runs").exists()
    assert run_chain(place.spec, "d1")["release"]  # in one process, whatever the launch is


@pytest.mark.parametrize("gpu", [{"train": {"device": "cuda"}}, {"model": {"num_gpus": 1}}])
def test_ranks_with_gpus_need_partitions_of_all_types(place, gpu):
    """That a type is whole may be the choice of ``auto``."""
    place.snapshot("d1", [(f"user{i}", "lives in", f"city{i % 5}") for i in range(60)])
    model = {
        "dimension": 8,
        "entities": {"user": {"num_partitions": 4}, "city": {"num_partitions": "auto"}},
        "relations": [{"name": "lives in", "lhs": "user", "rhs": "city"}],
        "dynamic_relations": False,
    }
    place.write_spec(model | gpu.get("model", {}), train=gpu.get("train", {}), launch={"ranks": 2})
    with pytest.raises(ConfigError, match=r"2 ranks with GPUs cannot share .* of one partition \(city\)"):
        plan(place.spec, "d1")
    assert not (place.store / "runs").exists()
    assert plan(place.spec, "d1", alone=True)["run"]  # one process shares nothing


def test_plan_needs_no_torch(place):
    """The scheduler's image has none."""
    place.snapshot("d1", ring(50))
    place.write_spec({"dimension": 8, **AUTO}, resources={"memory_gb": 1, "threads": 1})
    code = "import sys; sys.modules['torch'] = None; from pbg_tasks.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, "plan", str(place.spec), "--snapshot", "d1"], check=True)


def test_graph_that_never_fits_names_helpful_keys(place):
    place.snapshot("d1", ring(3000))
    with pytest.raises(
        ConfigError, match=r"--memory-gb.*: 0.28 GB .*: with 256 partitions of n .* change .*batch_size"
    ):
        planned(place, 0.28)


def test_small_types_stay_whole_others_share_number(place):
    rows = [(f"user{i}", "buys", f"item{i % 1500}") for i in range(3000)]
    rows += [(f"user{i}", "lives in", f"city{i % 5}") for i in range(3000)]
    place.snapshot("d1", rows)
    model = {
        "entities": {name: {"num_partitions": "auto"} for name in ("user", "item", "city")},
        "relations": [
            {"name": "buys", "lhs": "user", "rhs": "item"},
            {"name": "lives in", "lhs": "user", "rhs": "city"},
        ],
    }
    chosen = planned(place, 0.5, {**model, "dynamic_relations": False})["partitions"]
    assert chosen["city"] == 1
    assert chosen["user"] == chosen["item"] > 1


def test_number_beside_auto_is_the_only_choice(place):
    place.snapshot("d1", [(f"user{i}", "buys", f"item{i}") for i in range(3000)])
    model = {
        "entities": {"user": {"num_partitions": 6}, "item": {"num_partitions": "auto"}},
        "relations": [{"name": "buys", "lhs": "user", "rhs": "item"}],
        "dynamic_relations": False,
    }
    assert planned(place, 0.55, model)["partitions"] == {"user": 6, "item": 6}
    with pytest.raises(ConfigError, match="with 6 partitions"):
        planned(place, 0.45, model)


def test_later_night_keeps_number_of_the_release(place, capsys):
    place.snapshot("d1", ring(400))
    place.write_spec({"dimension": 400, **AUTO}, resources={"memory_gb": 1, "threads": 1})
    run_chain(place.spec, "d1", epochs=1, partitions=3)
    place.snapshot("d2", ring(500))
    second = run_chain(place.spec, "d2", epochs=1)
    assert second["warm_start"] is True
    assert second["entities"]["kept"] == 400
    result = RunContext.open(second["run"]).require("plan")
    assert result["partitions"] == {"n": 3}
    said = capsys.readouterr().err
    assert "num_partitions n 3" in said
    assert "warning" not in said

    # Much larger nights do not fit any more: a warning reports that, and the ids still stay.
    place.snapshot("d3", ring(3000))
    place.write_spec({"dimension": 400, **AUTO}, resources={"memory_gb": 0.25, "threads": 1})
    third = plan(place.spec, "d3")
    assert third["partitions"] == {"n": 3}
    said = capsys.readouterr().err
    assert "training no longer keeps within resources.memory_gb" in said
    assert "more than resources.memory_gb (0.25 GB)" in said


def test_release_with_lost_ids_decides_nothing(place):
    rows = [(f"user{i}", "buys", f"item{(i + step) % 300}") for i in range(300) for step in (0, 1, 5)]
    model = {
        "relations": [{"name": "buys", "lhs": "user", "rhs": "item", "operator": "translation"}],
        "dynamic_relations": False,
        "dimension": 8,
    }
    place.snapshot("d1", rows)
    place.write_spec({**model, "entities": {"user": {"num_partitions": 3}, "item": {"num_partitions": "auto"}}})
    run_chain(place.spec, "d1", epochs=0, partitions=3)
    place.snapshot("d2", rows)
    place.write_spec({**model, "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": "auto"}}})
    assert plan(place.spec, "d2")["partitions"] == {"user": 2, "item": 1}


def test_entities_that_only_the_release_knows_count(place):
    place.snapshot("d1", ring(2000))
    place.write_spec({"dimension": 1000}, resources={"memory_gb": 1, "threads": 1})
    first = run_chain(place.spec, "d1", epochs=0)
    place.snapshot("d2", ring(50))
    second = plan(place.spec, "d2")
    before = RunContext.open(first["run"]).require("plan")
    embeddings = [result["memory"]["train"]["lines"]["embeddings in memory"] for result in (before, second)]
    assert embeddings[1] == pytest.approx(embeddings[0], rel=0.1)


def test_forecast_of_plan_is_that_of_training(place):
    place.snapshot("d1", ring(3000))
    place.write_spec({"dimension": 4000}, resources={"memory_gb": 1, "threads": 1})
    summary = run_chain(place.spec, "d1", epochs=0)
    run = RunContext.open(summary["run"])
    ahead, there = (run.require(task)["memory"] for task in ("plan", "train"))
    told, known = ahead["train"]["lines"], there["lines"]
    assert told["embeddings in memory"] == pytest.approx(known["embeddings in memory"], rel=0.1)
    assert told["batches of 1 worker"] == pytest.approx(known["batches of 1 worker"], rel=0.1)


@pytest.mark.parametrize("sample", [1_000_000, 4_000])
def test_plan_estimates_the_largest_bucket(place, monkeypatch, sample):
    """Let two of three edges end at one user.

    Cities are not partitioned, so that all entities living in one makes no bucket larger.
    """
    monkeypatch.setattr(bucket_sample, "SAMPLE", sample)
    rng = random.Random(0)
    rows = [(f"u{rng.randrange(3000)}", "knows", f"u{rng.randrange(3000) if i % 3 == 0 else 0}") for i in range(12_000)]
    rows += [(f"u{rng.randrange(3000)}", "lives in", "Rome") for _ in range(6_000)]
    model = {
        "entities": {"user": {"num_partitions": 4}, "city": {"num_partitions": 1}},
        "relations": [
            {"name": "knows", "lhs": "user", "rhs": "user"},
            {"name": "lives in", "lhs": "user", "rhs": "city"},
        ],
        "dynamic_relations": False,
    }
    place.snapshot("d1", rows)
    place.write_spec(model, gates=REPEATED, split={"valid": 0.0, "test": 0.001})
    planned = plan(place.spec, "d1")
    for task in ("validate", "partition", "bucket"):
        run_task(task, planned["run"])
    buckets = np.array(RunContext.open(planned["run"]).require("bucket")["matrix"])
    assert buckets.max() > 2 * buckets.mean()
    told = planned["memory"]["train"]["lines"]["edges of a bucket"] / EDGE_BYTES
    assert told == pytest.approx(buckets.max(), rel=0.01 if sample > len(rows) else 0.15)


SHAPES = {
    "one partition": ({}, 1),
    "a hub in 16 partitions, all of them in memory": ({"partition_buffer": "auto"}, 16),
    # Of smaller ones the allocator keeps some when they leave, which is more than a tenth of so little.
    "a hub in 4 partitions, two of them in memory": ({"partition_buffer": 2, "dimension": 2500}, 4),
}


@pytest.mark.parametrize("shape", of_today(list(SHAPES), days=3))
def test_planned_peak_is_near_the_measured_peak(place, shape):
    """Each task runs in a process of its own, as in Airflow."""
    keys, partitions = SHAPES[shape]
    rng = random.Random(0)
    rows = [(f"e{i % 40_000}", "knows", f"e{rng.randrange(40_000) if i % 2 else 0}") for i in range(400_000)]
    place.snapshot("d1", rows)
    model = {"dimension": 1500, "comparator": "dot", "workers": 1, "batch_size": 1000, **keys}
    model |= {"entities": {"n": {"num_partitions": partitions}}, "num_epochs": 1}
    place.write_spec(model, gates=REPEATED, resources={"memory_gb": 1, "threads": 1}, train={"engine": "native"})

    def pbg(*arguments):
        command = [sys.executable, "-m", "pbg_tasks", *map(str, arguments), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    planned = pbg("plan", place.spec, "--snapshot", "d1")
    for task in ("validate", "partition", "bucket"):
        pbg(task, planned["run"])
    measured = pbg("train", planned["run"])["memory"]["measured_peak"]
    assert planned["memory"]["train"]["peak"] == pytest.approx(measured, rel=0.1)


def buffered(place, memory_gb, **model):
    """Return the chosen ``partition_buffer`` and the plan's forecast."""
    chosen = planned(place, memory_gb, {"partition_buffer": "auto", "entities": {"n": {"num_partitions": 16}}, **model})
    graph = RunContext.open(chosen["run"]).spec.graph
    return graph.model.partition_buffer, chosen["memory"]["train"]["peak"]


def test_buffer_has_as_many_partitions_as_fit(place, capsys):
    place.snapshot("d1", ring(3000))  # 240 MB of embeddings
    assert buffered(place, 1.0)[0] == 16
    count, peak = buffered(place, 0.5)
    assert 4 < count < 16
    assert peak <= 0.5e9
    more = planned(place, 0.5, {"partition_buffer": count + 1, "entities": {"n": {"num_partitions": 16}}})
    assert more["memory"]["train"]["peak"] > 0.5e9
    capsys.readouterr()
    assert buffered(place, 0.28)[0] is None
    assert "partition_buffer as by default, for want of memory" in capsys.readouterr().err


def test_auto_is_the_default_in_other_places():
    relations = [{"name": "r", "lhs": "n", "rhs": "n"}]
    config = {"dimension": 4, "entities": {"n": {"num_partitions": 16}}, "relations": relations}
    auto = parse(ModelConfig, {**config, "partition_buffer": "auto"}, source="a dict")
    assert Layout(auto).capacity() == Layout(parse(ModelConfig, config, source="a dict")).capacity() == {"n": 4}
    assert auto.model_dump(mode="json")["partition_buffer"] == "auto"
    with pytest.raises(ConfigError, match=r"partition_buffer.*must be greater than 0, or auto"):
        parse(ModelConfig, {**config, "partition_buffer": 0}, source="a dict")


def test_pbg_config_needs_a_number(tmp_path):
    from pbg_tasks.tasks.directory.configs import load_config_from

    config = {
        "entity_path": "e",
        "edge_paths": ["x"],
        "checkpoint_path": "c",
        "dimension": 4,
        **AUTO,
        "relations": [{"name": "r", "lhs": "n", "rhs": "n"}],
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"entity_path": str(tmp_path / "e")}))
    with pytest.raises(ConfigError, match=r"entities.n.num_partitions: auto, yet nothing of n is imported into"):
        load_config_from(str(path))
    assert load_config_from(str(path), ["entities.n.num_partitions=2"]).entities["n"].num_partitions == 2
    with pytest.raises(ConfigError, match=r"entities.n.num_partitions: auto is a word of config files"):
        parse(ConfigSchema, config, source="a dict")


def test_import_chooses_number_for_pbg_config(place, tmp_path):
    from pbg_tasks.tasks.directory.configs import load_config_from

    lists = place.snapshot("d1", ring(3000))  # 240 MB of embeddings
    entities, edges, checkpoint = (str(tmp_path / name) for name in ("e", "x", "c"))
    written = {"entity_path": entities, "edge_paths": [edges], "checkpoint_path": checkpoint}
    model = MODEL | AUTO | {"dimension": WIDE, "workers": 1, "eval_fraction": 0}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(written | model))

    def imported(*options):
        command = ["import", "tsv", str(path), str(lists), "--header", "-l", "lhs", "--rel-col", "rel", "-r", "rhs"]
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 0, done.output
        return load_config_from(str(path)).entities["n"].num_partitions

    chosen = imported("--memory-gb", "0.45")
    assert chosen > 4  # four are in memory at once
    assert len(list((tmp_path / "e").glob("entity_count_n_*.txt"))) == chosen
    assert len(list((tmp_path / "x").glob("edges_*.h5"))) == chosen**2
    assert imported("--memory-gb", "4") == chosen  # ids are stable


def test_every_command_that_reads_spec_takes_auto(place):
    from pbg_tasks.config.loading import load_graph_spec

    place.write_spec(AUTO)
    spec = load_graph_spec(place.spec)
    assert spec.model.entities["n"].written_partitions == "auto"
    assert yaml.safe_load(place.spec.read_text())["model"]["entities"] == AUTO["entities"]
    assert spec.model_dump(mode="json")["model"]["entities"]["n"]["num_partitions"] == "auto"


@pytest.mark.parametrize("wrong", [0, -1, "many", 1.5, True, None])
def test_other_texts_are_no_number_of_partitions(place, wrong):
    from pbg_tasks.config.loading import load_graph_spec

    place.write_spec({"entities": {"n": {"num_partitions": wrong}}})
    with pytest.raises(ConfigError, match=r"model.entities.n.num_partitions"):
        load_graph_spec(place.spec)
