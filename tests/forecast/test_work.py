"""Forecast work of a night, which grows with its input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.forecast.calibration import calibrated
from pbg_tasks.forecast.work import Work, modelled
from pbg_tasks.tasks.context import CHAIN

MODEL = ModelConfig.model_validate(
    {
        "entities": {"n": {"num_partitions": 4}},
        "relations": [{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
        "dimension": 100,
        "num_batch_negs": 100,
        "num_uniform_negs": 400,
    }
)
WORK = Work(
    model=MODEL,
    entities={"n": 1_000_000},
    edges=10_000_000,
    trained=9_800_000,
    asked=100_000,
    candidates=1_000_000,
    epochs=2,
    workers=1,
    threads=1,
    engine="native",
    warm=True,
    compared=True,
)
MEMORY = dict.fromkeys(CHAIN, 1)


def worked_out(**changes):
    return modelled(replace(WORK, **changes), memory=MEMORY)


def test_every_task_but_the_plan_is_listed():
    assert set(worked_out()) == {*CHAIN} - {"plan"}


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"epochs": 20}, 10),
        ({"edges": 100_000_000, "trained": 98_000_000}, 10),
        ({"workers": 2}, 0.5),
        ({"model": MODEL.model_copy(update={"num_uniform_negs": 4900})}, 10),
        ({"model": MODEL.model_copy(update={"dimension": 1000})}, 7),  # a score has a cost of its own
    ],
)
def test_training_grows_in_proportion(changes, factor):
    before, after = worked_out()["train"].seconds, worked_out(**changes)["train"].seconds
    assert after / before == pytest.approx(factor, rel=0.25)


def test_preserve_takes_time_for_indexed_names():
    assert worked_out()["preserve"].seconds < 1
    assert worked_out(indexed=25_000_000)["preserve"].seconds == pytest.approx(44, rel=0.1)


def test_workers_share_time_but_not_computing():
    one, four = worked_out()["train"], worked_out(workers=4)["train"]
    assert four.seconds < one.seconds / 3
    assert four.cpu_seconds == pytest.approx(one.cpu_seconds, rel=0.1)


def test_engines_differ():
    native, torch, gpu = (worked_out(engine=engine)["train"].seconds for engine in ("native", "torch", "gpu"))
    assert gpu < native < torch


def test_traffic_equals_contents_of_files():
    vectors = 1_000_000 * (100 + 2) * 4
    found = worked_out(warm=False, compared=False)
    assert found["train"].store_bytes_written == 2 * vectors
    assert found["train"].store_bytes_read == 9_800_000 * 24
    assert found["eval"].store_bytes_read == vectors + 10_000_000 * 24
    assert worked_out()["train"].store_bytes_read > found["train"].store_bytes_read + vectors


def test_first_night_has_no_comparison():
    first, second = worked_out(warm=False, compared=False), worked_out(warm=False)
    assert first["drift"].seconds == 0
    assert second["drift"].seconds > 0
    for task in ("validate", "eval", "drift"):
        assert second[task].store_bytes_read > first[task].store_bytes_read
    assert second["train"] == first["train"]


def test_best_release_costs_evaluation_alone():
    usual, beside = worked_out(), worked_out(best=True)
    assert {task for task in usual if usual[task] != beside[task]} == {"eval"}
    assert beside["eval"].seconds > usual["eval"].seconds
    assert beside["eval"].store_bytes_read > usual["eval"].store_bytes_read + 1_000_000 * (100 + 2) * 4


def test_evaluation_grows_with_edges_and_candidates():
    base = worked_out()["eval"].seconds
    assert worked_out(asked=1_000_000)["eval"].seconds > 8 * base
    assert worked_out(candidates=100_000)["eval"].seconds < base / 5


@pytest.mark.parametrize(
    ("dimension", "cpu_seconds", "seconds"),
    [(16, 9.8, 78), (200, 29.5, 192)],  # measured on two cores that were shared with some twenty other processes
)
def test_tiny_first_night_is_within_its_interval(dimension, cpu_seconds, seconds):
    """Sixty commits and many scores cost more than the products."""
    few = {"dimension": dimension, "num_batch_negs": 50, "num_uniform_negs": 500, "batch_size": 100}
    tiny = worked_out(
        model=MODEL.model_copy(update=few), entities={"n": 3000}, edges=12_000, trained=10_800, epochs=60
    )["train"]
    assert tiny.cpu_seconds == pytest.approx(cpu_seconds, rel=0.5)
    for value, measured in ((tiny.seconds, seconds), (tiny.cpu_seconds, cpu_seconds)):
        found = calibrated("train", "seconds", value, [])
        assert found.low < measured < found.high
    assert tiny.seconds > tiny.cpu_seconds + 60 * 0.1  # what is stored for each epoch is waited for


def test_parts_share_time_of_evaluation():
    whole, split = worked_out(), modelled(replace(WORK, parts=4), memory=MEMORY | {"eval_part": 1})
    assert split["eval"].seconds < split["eval_part"].seconds < 0.5 * whole["eval"].seconds
    assert split["eval_part"].cpu_seconds == pytest.approx(whole["eval"].cpu_seconds, rel=0.2)
    more = modelled(replace(WORK, parts=40), memory=MEMORY | {"eval_part": 1})  # than there are partitions
    assert more["eval_part"].seconds == split["eval_part"].seconds
    assert {task for task in split if split[task] != whole.get(task)} == {"eval", "eval_part"}
