"""Forecasts of nights, their real costs, and nights beyond limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pbg_tasks.checkpoint import CheckpointWriter
from pbg_tasks.checkpoint.manifest import encode
from pbg_tasks.cli import app
from pbg_tasks.config.base import parse
from pbg_tasks.config.launch import Launch
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.errors import ConfigError, InputError, QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import when_skipped
from pbg_tasks.report.run import run_document
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.context import CHAIN, RunContext
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.evaluate import count_part, evaluate
from pbg_tasks.tasks.nightly.forecasting import measured_nights, outlook
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.partitioning import Expected
from pbg_tasks.tasks.view.report import read_run, report
from pbg_tasks.tasks.view.show import overview, show
from pbg_tasks.tasks.view.tables import table
from tests.tasks.conftest import ring

NEAR = 1.5
COSTS = {"hour": 3600.0, "currency": "USD"}  # a second costs 1 USD


def night(place, key, size):
    """Do all tasks of a night; return its facts."""
    place.snapshot(key, ring(size))
    url = plan(place.spec, key)["run"]
    for task in TASKS:
        run_task(task, url)
    return show(url)


def test_forecast_after_two_nights_is_near_third(place):
    place.write_spec({"dimension": 400}, costs=COSTS)  # otherwise small documents would outweigh the vectors
    nights = [night(place, *each) for each in (("d1", 100), ("d2", 105), ("d3", 110))]
    first, third = nights[0]["forecast"], nights[2]["forecast"]
    assert first["calibrated_on"] == []
    second = nights[1]["run"].rpartition("/")[2]
    assert third["calibrated_on"] == [second]  # the first is of another kind: nothing to continue or compare with
    assert list(third["tasks"]) == [task for task in CHAIN if task != "plan"]
    # Figures that follow from sizes are the same on every machine; the time of such short tasks is hardly the same
    # twice.
    for task, field in (("train", "store_bytes_written"), ("bucket", "store_bytes_written"), ("train", "memory_bytes")):
        assert 1 / NEAR < third["tasks"][task][field]["ratio"] < NEAR, (task, field)
    assert 1 / 4 < third["total_cpu_seconds"]["ratio"] < 4
    assert third["cost"]["actual"] == pytest.approx(third["total_seconds"]["actual"], rel=1e-3)

    shown = CliRunner().invoke(app, ["show", nights[2]["run"]])
    assert "train" in shown.stdout
    assert "cost, USD: " in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["show", nights[2]["run"], "--json"]).stdout)
    assert told["forecast"] == third


def test_damaged_night_is_left_out_of_forecasts(place, capsys):
    first, second = (RunContext.open(night(place, *each)["run"]) for each in (("d1", 50), ("d2", 55)))
    (place.store / "runs" / first.run_id / "results" / "train.json").write_text("{")
    place.snapshot("d3", ring(60))
    assert plan(place.spec, "d3")["forecast"]["calibrated_on"] == [second.run_id]
    assert "train.json: not JSON; it was edited by hand" in capsys.readouterr().err


def test_run_with_two_releases_is_one_night(place):
    first = RunContext.open(night(place, "d1", 50)["run"])
    channel = Channel(first.store, "production")
    first.store.put_new(channel.release_key(2), encode(channel.release(1).model_copy(update={"seq": 2})))
    place.snapshot("d2", ring(55))
    assert plan(place.spec, "d2")["forecast"]["calibrated_on"] == [first.run_id]


def test_last_try_of_interrupted_training_is_ignored(place, monkeypatch):
    first = RunContext.open(night(place, "d1", 50)["run"])
    assert first.result("train")["resumed_from"] is None
    place.snapshot("d2", ring(55))
    url = plan(place.spec, "d2")["run"]
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointWriter, "commit", interrupted_after(1))
        for task in ("validate", "partition", "bucket"):
            run_task(task, url)
        with pytest.raises(KeyboardInterrupt):
            run_task("train", url)
    for task in TASKS:
        run_task(task, url)
    second = RunContext.open(url)
    assert second.result("train")["resumed_from"] == 1
    forecast = show(url)["forecast"]
    assert forecast["last_try"] == ["train"]
    assert "train: figures of its last try only" in CliRunner().invoke(app, ["show", url]).stdout
    report(url)
    assert "train: figures of its last try only" in (Path(url) / "report" / "index.html").read_text()

    place.snapshot("d3", ring(60))
    nights = measured_nights(RunContext.open(plan(place.spec, "d3")["run"]))
    assert [(each.run, "train" in each.measured, "eval" in each.measured) for each in nights] == [
        (first.run_id, True, True),
        (second.run_id, False, True),
    ]


def interrupted_after(commits):
    """Make a ``commit`` that lets so many through."""
    through, left = CheckpointWriter.commit, [commits]

    def commit(self, *args, **kwargs):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return through(self, *args, **kwargs)

    return commit


def test_delta_night_is_of_its_own_kind(place):
    night(place, "d1", 50)
    place.write_spec(train={"delta": {}})
    place.snapshot("d2", ring(55))
    assert plan(place.spec, "d2")["forecast"]["kind"].endswith(", delta")


def test_two_graphs_do_not_continue_each_other(place):
    night(place, "d1", 50)
    place.write_spec(graph="other")
    place.snapshot("d2", ring(55))
    with pytest.raises(ConfigError, match=r"channel 'production' of .* serves graph 'toy', not 'other'"):
        plan(place.spec, "d2")
    place.write_spec(graph="other", channel="other")
    assert plan(place.spec, "d2")["previous_release"] is None


def test_independent_night_is_compared_too(place):
    place.write_spec(nights={"walk": "independent"})
    first = night(place, "d1", 50)["forecast"]["tasks"]["drift"]
    assert first["store_bytes_read"]["forecast"] == 0
    place.snapshot("d2", ring(55))
    second = plan(place.spec, "d2")["forecast"]["tasks"]["drift"]
    assert second["store_bytes_read"] > 0
    assert second["seconds"] > 0


def test_forecast_of_eval_takes_cpus_of_its_pod(place):
    place.write_spec({"dimension": 200}, resources={"memory_gb": 1})
    place.snapshot("d1", ring(40))
    run, written = RunContext.open(plan(place.spec, "d1")["run"]), load_graph_spec(place.spec)
    expected = Expected({"n": 1_000_000}, 3, 100_000)

    def forecast(cpu):
        pod = {"image": f"pbg@sha256:{'0' * 64}", "resources": {"cpu": cpu, "memory": "8Gi"}}
        launch = parse(Launch, {"tasks": {"eval": pod}}, source="launch")
        return (
            outlook(run, expected, written.model_copy(update={"launch": launch})).night.tasks["eval"]["seconds"].likely
        )

    one, eight, many = (forecast(cpu) for cpu in ("1", "7500m", "0.1k"))
    assert one > 2 * eight > 2 * many


def test_parts_of_eval_are_forecast_and_measured(place):
    place.write_spec({"entities": {"n": {"num_partitions": 2}}, "num_epochs": 1}, eval={"parts": 2})
    place.snapshot("d1", ring(50))
    url = plan(place.spec, "d1")["run"]
    for task in TASKS:
        if task == "eval":
            parts = [count_part(url, f"{number}/2") for number in (1, 2)]
            evaluate(url, 2)
        else:
            run_task(task, url)
    place.snapshot("d2", ring(55))
    planned = plan(place.spec, "d2")
    assert planned["forecast"]["tasks"]["eval_part"]["seconds"] > 0
    (night,) = measured_nights(RunContext.open(planned["run"]))
    assert night.measured["eval_part"].seconds == max(part["seconds"] for part in parts)
    assert night.measured["eval"].seconds == RunContext.open(url).result("eval")["seconds"]


def test_times_of_parts_are_shown(place):
    place.write_spec({"entities": {"n": {"num_partitions": 2}}, "num_epochs": 1}, eval={"parts": 2}, costs=COSTS)
    place.snapshot("d1", ring(50))
    url = plan(place.spec, "d1")["run"]
    for task in ("validate", "partition", "bucket", "train", "preserve"):
        run_task(task, url)
    waiting = run_document(read_run(RunContext.open(url)))["forecast"]
    parts = [count_part(url, f"{number}/2")["seconds"] for number in (1, 2)]
    taken = evaluate(url, 2)["parts"]
    assert (taken["count"], taken["seconds"], taken["all_seconds"]) == (2, max(parts), pytest.approx(sum(parts)))
    shown, page = show(url), run_document(read_run(RunContext.open(url)))
    assert shown["tasks"]["eval_part"]["seconds"] == max(parts)
    assert shown["forecast"]["tasks"]["eval_part"]["seconds"]["actual"] == pytest.approx(max(parts))
    assert page["seconds"] == pytest.approx(sum(task["seconds"] for task in shown["tasks"].values()))
    assert page["forecast"]["expected_seconds"] == waiting["expected_seconds"]
    actual = {row["task"]: row["seconds"]["actual"] for row in page["forecast"]["tasks"]}
    assert (list(actual)[5:7], actual["eval_part"]) == (["eval_part", "eval"], pytest.approx(max(parts)))
    assert "eval_part" in table([shown])


def test_run_by_hand_is_forecast_as_a_whole(place):
    """One process evaluates, however many parts the DAGs make."""
    model = {"entities": {"n": {"num_partitions": 2}}, "num_epochs": 1}
    place.snapshot("d1", ring(50))
    place.write_spec(model)
    whole = plan(place.spec, "d1")["forecast"]["modelled"]
    place.write_spec(model, eval={"parts": 2})
    run = RunContext.open(run_chain(place.spec, "d1")["run"])
    forecast = run.require("plan")["forecast"]["modelled"]
    assert (forecast.keys(), forecast["eval"][0]) == (whole.keys(), whole["eval"][0])
    assert run.spec.graph.eval.parts == 2


def test_cost_has_pods_of_partition_servers(place):
    gang = {"num_machines": 4, "num_partition_servers": 2, "distributed_init_method": "env://"}
    place.write_spec({"entities": {"n": {"num_partitions": 4}}, **gang}, costs=COSTS)
    place.snapshot("d1", ring(40))
    run, written = RunContext.open(plan(place.spec, "d1")["run"]), load_graph_spec(place.spec)
    pod = {"image": f"pbg@sha256:{'0' * 64}", "resources": {"cpu": "1", "memory": "8Gi"}}
    for ranks, machines in ((1, 1), (4, 6)):
        keys = {"launcher": "kubernetes", "ranks": ranks, "kubernetes": pod}
        launch = parse(Launch, keys, source="launch")
        coming = outlook(run, Expected({"n": 40}, 3, 120), written.model_copy(update={"launch": launch}))
        assert coming.night.machines == machines
        computed, _, _, _, _ = coming.night.modelled["train"]
        trains_at_once = min(ranks, 2)  # with four partitions; the others wait
        assert coming.night.tasks["train"]["seconds"].likely == pytest.approx(computed / trains_at_once)


def test_gpu_is_forecast_with_one_worker(place, monkeypatch):
    monkeypatch.setattr("pbg_tasks.tasks.nightly.forecasting.usable_cpus", lambda: 16)
    place.write_spec(train={"device": "cuda"})
    place.snapshot("d1", ring(40))
    seconds, cpu_seconds, *_ = plan(place.spec, "d1")["forecast"]["modelled"]["train"]
    assert cpu_seconds < seconds


def test_gpus_that_wait_make_no_night_shorter(place):
    seconds = []
    for gpus in (1, 2, 4):
        place.write_spec({"entities": {"n": {"num_partitions": 4}}, "num_gpus": gpus})
        place.snapshot("d1", ring(40))
        seconds.append(plan(place.spec, "d1")["forecast"]["modelled"]["train"][0])
    assert seconds[0] > seconds[1] == seconds[2]


def test_too_expensive_night_ends_before_any_work(place):
    place.write_spec(costs=COSTS, limits={"max_cost": {"block": 0.01}})
    place.snapshot("d1", ring(50))
    with pytest.raises(
        QualityGateError, match=r"forecast to cost .* USD .* at most 0\.01 USD allowed; raise limits"
    ) as caught:
        plan(place.spec, "d1")
    assert caught.value.exit_code == 8
    (run,) = (place.store / "runs").iterdir()
    assert [path.name for path in (run / "results").iterdir()] == ["plan.json"]
    assert when_skipped(Channel(LocalStore(place.store), "production"), "d1") is not None

    # The limit is no part of the run: a higher one lets the same run continue.
    again = plan(place.spec, "d1", overrides=["limits.max_cost.block=1000"])
    assert again["run"] == str(run)


def test_day_beyond_limits_is_refused_not_broken(place):
    path = place.snapshot("d1", [])
    path.write_text("lhs\trel\ne1\tnext\n")
    with pytest.raises(InputError):
        plan(place.spec, "d1")
    place.snapshot("d1", ring(50))
    place.write_spec(limits={"max_hours": {"block": 0}})
    with pytest.raises(QualityGateError):
        plan(place.spec, "d1")
    shown = overview(place.spec)
    (reason,) = shown["without_release"]["production"].values()
    assert reason.startswith("its forecast is beyond the spec's limits: the night is forecast to take ")
    assert ("planned again" in reason, shown["failed"]) == (False, {})


def test_show_names_limits_that_refused_run(place):
    place.snapshot("d1", ring(50))
    run = plan(place.spec, "d1")["run"]
    place.write_spec(limits={"max_hours": {"block": 0}})
    with pytest.raises(QualityGateError):
        plan(place.spec, "d1")
    text = CliRunner().invoke(app, ["show", run]).stdout
    assert text.splitlines()[2].split(maxsplit=1) == ["verdict", "refused by the limits of its forecast"]
    assert "its forecast is beyond the spec's limits: the night is forecast to take " in text
    assert "; to let d1 pass: raise `limits`, or `pbg run SPEC d1` with its options and --accept-data REASON; " in text
    place.write_spec()
    plan(place.spec, "d1")
    run_task("validate", run)
    assert "unfinished, next is partition" in CliRunner().invoke(app, ["show", run]).stdout


def test_night_that_has_begun_is_not_stopped(place):
    place.write_spec(limits={"max_hours": {"block": 100}})
    place.snapshot("d1", ring(50))
    run = plan(place.spec, "d1")["run"]
    run_task("validate", run)
    place.write_spec(limits={"max_hours": {"block": 0}})
    assert plan(place.spec, "d1")["run"] == run
    assert when_skipped(Channel(LocalStore(place.store), "production"), "d1") is None


def test_costs_of_a_night_may_be_accepted(place, capsys):
    place.write_spec(limits={"max_hours": {"block": 0}})
    place.snapshot("d1", ring(50))
    assert plan(place.spec, "d1", accept_data="the yearly rebuild")["run"]
    assert "accepted (the yearly rebuild): the night is forecast to take" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "train", "key"),
    [
        ({"gradient": "sampled"}, {"device": "cuda"}, "model.gradient: sampled"),
        ({"mask_known_negatives": True, "num_gpus": 1}, {}, "model.mask_known_negatives: true"),
        ({}, {"device": "cuda", "engine": "native"}, "train.engine: native"),
    ],
)
def test_plan_refuses_what_no_gpu_trains(place, changes, train, key):
    place.write_spec(changes, train=train)
    place.snapshot("d1", ring(50))
    with pytest.raises(ConfigError, match=f"{key}: for the CPU, yet train.device is cuda"):
        plan(place.spec, "d1")
    assert not (place.store / "runs").exists()


def test_plan_refuses_what_native_engine_never_trains(place, monkeypatch):
    """Another CPU may train what this one has no instructions for."""
    monkeypatch.setattr("pbg_tasks.native.coverage.instruction_set", lambda: "avx2")
    place.snapshot("d1", ring(50))
    place.write_spec({"mask_known_negatives": True}, train={"engine": "native"})
    with pytest.raises(ConfigError, match=r"train\.engine: native leaves to engine torch: mask_known_negatives: true;"):
        plan(place.spec, "d1")
    assert not (place.store / "runs").exists()
    place.write_spec({"precision": "bf16", "comparator": "dot"}, train={"engine": "native"})
    assert plan(place.spec, "d1")["run"]


def test_mild_limit_warns(place, capsys):
    place.write_spec(limits={"max_hours": {"warn": 0, "block": 100}})
    place.snapshot("d1", ring(50))
    plan(place.spec, "d1")
    assert "warning: the night is forecast to take" in capsys.readouterr().err


def test_run_planned_without_forecast_is_shown(place):
    place.snapshot("d1", ring(50))
    run = RunContext.open(plan(place.spec, "d1")["run"])
    path = place.store / run.key("results/plan.json")
    planned = json.loads(path.read_text())
    del planned["forecast"]
    path.write_text(json.dumps(planned))
    shown = CliRunner().invoke(app, ["show", run.url])
    assert shown.exit_code == 0
    assert "snapshot" in shown.stdout


def test_plan_without_spark_counts_by_duckdb(place, monkeypatch, capsys):
    place.snapshot("d1", ring(40))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    counts = []
    for engine in ("spark", "duckdb"):
        place.write_spec(resources={"memory_gb": 1, "threads": 1, "engine": engine})
        counts.append(RunContext.open(plan(place.spec, "d1")["run"]).require("plan")["degrees"])
    assert counts[0] == counts[1] != {}
    assert "plan: counts on this machine, by DuckDB, because Spark lacks" in capsys.readouterr().err
