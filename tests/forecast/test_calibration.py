from __future__ import annotations

import math

import pytest

from pbg_tasks.config.results import EvalResult, ForecastDocument, KeptCountsRecord, TaskResult, TrainResult
from pbg_tasks.forecast.calibration import RATES, MeasuredNight, calibrated
from pbg_tasks.forecast.usage import Usage

PLANNED = Usage(10.0, 10.0, 1e9, 1e6, 1e6)


def night(number, seconds, *, task="train", memory=1e9):
    return MeasuredNight(
        f"run-{number}", "native", {task: PLANNED}, {task: PLANNED._replace(seconds=seconds, memory_bytes=memory)}
    )


def test_first_forecast_has_a_wide_interval():
    assert calibrated("train", "seconds", 10.0, []) == pytest.approx((1, 10, 100))


def test_median_of_nights_ignores_one_odd_night():
    nights = [night(0, 20.0), night(1, 20.0), night(2, 500.0)]
    assert calibrated("train", "seconds", 30.0, nights).likely == pytest.approx(60)


def test_interval_narrows_with_nights_that_agree():
    def width(*seconds):
        low, _, high = calibrated("train", "seconds", 10.0, [night(at, each) for at, each in enumerate(seconds)])
        return math.log(high / low)

    unknown = math.log(9)
    assert unknown > width(20.0) > width(20.0, 20.0) > width(20.0, 20.0, 20.0, 20.0) > 2 * math.log(1.15) - 1e-9
    assert width(10.0, 40.0) > width(20.0, 20.0)


def test_nights_without_the_task_change_nothing():
    assert calibrated("train", "seconds", 10.0, [night(0, 1.0, task="eval")]).likely == 10


def test_unmeasurably_small_figures_change_nothing():
    nights = [MeasuredNight("run", "native", {"gate": Usage(0, 0, 0, 0, 0)}, {"gate": Usage(0.004, 0.001, 0, 900, 0)})]
    assert calibrated("gate", "seconds", 0.01, nights).likely == pytest.approx(0.01)
    assert calibrated("gate", "store_bytes_read", 0.0, nights).likely == 0


def test_night_without_work_changes_no_forecast():
    planned, took = PLANNED._replace(store_bytes_read=0), PLANNED._replace(store_bytes_read=3e5)
    first = MeasuredNight("run-0", "native", {"drift": planned}, {"drift": took})
    found = calibrated("drift", "store_bytes_read", 9.6e8, [first])
    assert found.likely == 9.6e8
    assert found == calibrated("drift", "store_bytes_read", 9.6e8, [])
    planned, took = PLANNED, PLANNED._replace(store_bytes_read=2e6)
    second = MeasuredNight("run-1", "native", {"drift": planned}, {"drift": took})
    assert calibrated("drift", "store_bytes_read", 9.6e8, [first, second]).likely == pytest.approx(2 * 9.6e8)


def test_memory_is_corrected_by_a_difference():
    nights = [night(0, 10.0, memory=1.2e9), night(1, 10.0, memory=1.2e9)]
    assert calibrated("train", "memory_bytes", 5e9, nights).likely == pytest.approx(5.2e9)


def planned(rates, **modelled):
    fields = {"tasks": {}, "intervals": {"seconds": {}}, "calibrated_on": [], "prices": None, "machines": 1}
    return ForecastDocument.model_validate(fields | {"rates": rates, "engine": "torch", "modelled": modelled})


def stored(**figures):
    return TaskResult.model_validate({"task": "t", "run": "r"} | figures)


def test_night_is_read_from_its_results():
    usage = {name: value for name, value in PLANNED._asdict().items() if name != "seconds"}
    results = {"train": stored(seconds=12.0, usage=usage), "old": stored(seconds=1)}
    found = MeasuredNight.of_results("run", planned(RATES, train=list(PLANNED)), results)
    assert found == MeasuredNight("run", "torch", {"train": PLANNED}, {"train": PLANNED._replace(seconds=12.0)})


@pytest.mark.parametrize("forecast", [None, planned(None), planned(RATES + 1)])
def test_night_of_other_method_is_left_out(forecast):
    assert MeasuredNight.of_results("run", forecast, {}) is None


def used(seconds):
    usage = {name: value for name, value in PLANNED._asdict().items() if name != "seconds"}
    return stored(seconds=seconds, usage=usage)


def test_parts_count_as_they_ran_at_once():
    forecast, parts = planned(RATES, eval=list(PLANNED), eval_part=list(PLANNED)), [used(30.0), used(20.0)]
    found = MeasuredNight.of_results("run", forecast, {"eval": used(3.0)}, parts)
    assert found.measured["eval"].seconds == 3
    assert found.measured["eval_part"] == Usage(30.0, 20.0, 1e9, 2e6, 2e6)


@pytest.mark.parametrize(("tasks", "parts"), [(("eval",), 2), (("eval", "eval_part"), 0)])
def test_merge_never_corrects_whole_evaluation(tasks, parts):
    forecast = planned(RATES, train=list(PLANNED), **{task: list(PLANNED) for task in tasks})
    found = MeasuredNight.of_results("run", forecast, {"train": used(9.0), "eval": used(3.0)}, [used(30.0)] * parts)
    assert list(found.measured) == ["train"]


def test_whole_evaluation_after_parts_corrects_no_merge():
    """One of them failed, and `pbg eval RUN` did without."""
    forecast = planned(RATES, train=list(PLANNED), eval=list(PLANNED), eval_part=list(PLANNED))
    kept = KeptCountsRecord(rule=1, manifest_sha256="0" * 64, sha256="0" * 64, edges=1)
    whole = EvalResult.model_construct(**used(90.0).model_dump() | {"usage": used(90.0).usage, "kept": kept})
    found = MeasuredNight.of_results("run", forecast, {"train": used(9.0), "eval": whole}, [used(30.0)])
    assert list(found.measured) == ["train"]


@pytest.mark.parametrize(("machines", "useful", "seconds"), [(4, 4, 36.0), (4, 2, 18.0), (1, 4, 9.0)])
def test_time_of_ranks_is_that_of_one(machines, useful, seconds):
    """Ranks on one machine share its cores, and some may wait."""
    forecast = planned(RATES, train=list(PLANNED)).model_copy(update={"machines": machines})
    figures = {"epochs": 1, "ranks": 4} | used(9.0).model_dump()
    trained = TrainResult.model_construct(**figures | {"usage": used(9.0).usage})
    found = MeasuredNight.of_results("run", forecast, {"train": trained}, useful=useful)
    assert found.measured["train"].seconds == seconds


def test_pods_that_one_process_had_planned_correct_nothing():
    """The first plan of a run stays."""
    forecast = planned(RATES, train=list(PLANNED)).model_copy(update={"machines": 1})
    figures = {"epochs": 1, "ranks": 4} | used(9.0).model_dump()
    trained = TrainResult.model_construct(**figures | {"usage": used(9.0).usage})
    results = {"train": trained, "gate": used(1.0)}
    found = MeasuredNight.of_results("run", forecast, results, in_pods=True)
    assert list(found.measured) == ["gate"]
