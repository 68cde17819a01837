from __future__ import annotations

import pytest

from pbg_tasks.config import Costs
from pbg_tasks.config.results import EvalResult, ForecastDocument, PartsTaken, Taken, TaskResult, TrainResult
from pbg_tasks.forecast.calibration import MeasuredNight
from pbg_tasks.forecast.night import forecast_night
from pbg_tasks.forecast.outcome import compare, outcome_table
from pbg_tasks.forecast.usage import Usage

PLANNED = {"train": Usage(3600.0, 7200.0, 2e9, 10e9, 4e9), "eval": Usage(1800.0, 1800.0, 3e9, 5e9, 0.0)}
COSTS = Costs(hour=2.0, gb_out=0.1, gb_in=0.01, currency="USD")


def measured(engine="native"):
    return MeasuredNight(
        "d1-abc", engine, PLANNED, {task: each._replace(seconds=2 * each.seconds) for task, each in PLANNED.items()}
    )


def stored(**figures):
    return TaskResult.model_validate({"task": "t", "run": "r"} | figures)


def result(usage):
    figures = usage._asdict()
    return stored(seconds=figures.pop("seconds"), usage=figures)


def test_forecast_has_figures_of_all_tasks():
    found = forecast_night(PLANNED, [], engine="native", costs=COSTS).to_json()
    assert found["seconds"] == {"train": 3600.0, "eval": 1800.0}
    assert found["total_seconds"] == 5400.0
    assert (found["memory_bytes"], found["store_bytes_read"], found["store_bytes_written"]) == (3e9, 15e9, 4e9)
    assert found["cost"] == {"amount": pytest.approx(1.5 * 2 + 15 * 0.1 + 4 * 0.01), "currency": "USD"}
    low, high = found["intervals"]["total_seconds"]
    assert (low, high) == (pytest.approx(540), pytest.approx(54000))
    assert found["intervals"]["cost"][0] < found["cost"]["amount"] < found["intervals"]["cost"][1]
    assert found["calibrated_on"] == []


def test_all_machines_of_a_gang_are_paid():
    alone, gang = (forecast_night(PLANNED, [], engine="native", machines=n, costs=Costs(hour=2.0)) for n in (1, 4))
    assert (alone.cost.likely, gang.cost.likely) == (pytest.approx(3.0), pytest.approx(3.0 + 3 * 2.0))
    assert gang.seconds == alone.seconds


def test_forecast_without_prices_has_no_cost():
    forecast = forecast_night(PLANNED, [], engine="native")
    assert forecast.to_json()["cost"] is None
    assert not any("cost" in line for line in forecast.table())


def test_other_engine_does_not_calibrate_training():
    forecast = forecast_night(PLANNED, [measured("torch")], engine="native")
    assert forecast.tasks["train"]["seconds"].likely == 3600
    assert forecast.tasks["eval"]["seconds"].likely == pytest.approx(3600)


def test_table_names_its_basis():
    first = forecast_night(PLANNED, [], engine="native", costs=COSTS).table()
    assert first[0].split() == ["task", "time", "between", "CPU", "memory", "read", "written"]
    assert "factor of 10" in first[-1]
    short = forecast_night(PLANNED, [], engine="native", costs=COSTS).table(itemised=False)
    assert [line.split("  ")[0] for line in short[:2]] == ["task", "the night"]
    assert short[2:] == first[-2:]
    assert first[-2].startswith("cost of the night: 4.54 USD (")
    later = forecast_night(PLANNED, [measured()], engine="native").table()
    held = "also the memory: likely, as their processes held it"  # beside the bound of `memory at most`
    assert later[-1] == f"calibrated on 1 released night of this graph, {held}"


def test_forecast_is_compared_with_the_real_figures():
    forecast = forecast_night(PLANNED, [measured()], engine="native", costs=COSTS).to_json()
    forecast |= {"tasks": forecast_night(PLANNED, [], engine="native").to_json()["tasks"]}
    train = result(PLANNED["train"]._replace(seconds=36_000.0))
    found = compare(ForecastDocument.model_validate(forecast), {"plan": stored(seconds=9.0), "train": train})
    assert found["tasks"]["train"]["seconds"] == {"forecast": 3600.0, "actual": 36_000.0, "ratio": 10.0}
    assert set(found["tasks"]) == {"train"}
    assert found["total_seconds"]["ratio"] == 10.0
    assert found["cost"]["actual"] == pytest.approx(10 * 2 + 10 * 0.1 + 4 * 0.01)
    (warning,) = found["warnings"]
    assert warning.startswith("train took 10:00:00, longer than the 1:")
    assert outcome_table(found)[1].split()[:5] == ["train", "1:00:00", "->", "10:00:00", "(10.00)"]


def test_night_without_finished_task_has_no_table():
    forecast = ForecastDocument.model_validate(forecast_night(PLANNED, [], engine="native", costs=COSTS).to_json())
    assert outcome_table(compare(forecast, {})) == []


def test_first_night_gets_one_warning_for_all_tasks():
    forecast = ForecastDocument.model_validate(forecast_night(PLANNED, [], engine="native").to_json())
    slow = {task: result(usage._replace(seconds=11 * usage.seconds)) for task, usage in PLANNED.items()}
    (warning,) = compare(forecast, slow)["warnings"]
    assert warning == (
        "the night took 16:30:00, longer than the 9:00 to 15:00:00 that were forecast with the times of another "
        "machine; it corrects those of the nights that follow"
    )


def test_figures_within_interval_give_no_warning():
    forecast = forecast_night(PLANNED, [], engine="native").to_json()
    found = compare(ForecastDocument.model_validate(forecast), {task: result(usage) for task, usage in PLANNED.items()})
    assert found["warnings"] == []
    assert found["cost"] is None
    assert {pair["ratio"] for task in found["tasks"].values() for pair in task.values()} <= {1.0, None}


def test_nights_of_one_kind_calibrate():
    nights = [
        MeasuredNight(run, "native", PLANNED, {task: each._replace(seconds=factor * each.seconds)}, kind)
        for run, factor, kind in (("d1", 9, "first"), ("d2", 2, "warm, compared"), ("d3", 2, "warm, compared"))
        for task, each in PLANNED.items()
        if task == "train"
    ]

    def forecast(nights, kind):
        return forecast_night(PLANNED, nights, engine="native", kind=kind).to_json()

    found = forecast(nights, "warm, compared")
    assert (found["calibrated_on"], found["kind"]) == (["d2", "d3"], "warm, compared")
    assert found["seconds"] == {"train": 7200.0, "eval": 1800.0}
    assert forecast(nights[:1], "warm, compared")["calibrated_on"] == ["d1"]


def test_task_without_its_kind_uses_other_nights():
    others = MeasuredNight("d1", "native", PLANNED, {"train": PLANNED["train"]._replace(seconds=7200.0)}, "first")
    resumed = MeasuredNight("d2", "native", PLANNED, {"eval": PLANNED["eval"]}, "warm")
    found = forecast_night(PLANNED, [others, resumed], engine="native", kind="warm").to_json()
    assert found["seconds"] == {"train": 7200.0, "eval": 1800.0}


def test_delta_nights_correct_no_whole_night():
    """Their training takes a part of the time."""
    short = {"train": PLANNED["train"]._replace(seconds=PLANNED["train"].seconds / 5)}
    nights = [MeasuredNight("d1", "native", PLANNED, short, "warm, delta")]
    likely = {
        kind: forecast_night(PLANNED, nights, engine="native", kind=kind).to_json()["seconds"]["train"]
        for kind in ("warm", "warm, delta")
    }
    assert likely == {"warm": PLANNED["train"].seconds, "warm, delta": PLANNED["train"].seconds / 5}


def test_whole_evaluation_corrects_no_merge_of_parts():
    """`pbg run` evaluates as a whole, between nights in parts."""
    slow = {"eval": PLANNED["eval"]._replace(seconds=18_000.0)}
    nights, parts = [MeasuredNight("d1", "native", PLANNED, slow)], PLANNED | {"eval_part": PLANNED["eval"]}
    found = [forecast_night(tasks, nights, engine="native").to_json() for tasks in (PLANNED, parts)]
    assert [each["seconds"]["eval"] for each in found] == [18_000.0, 1800.0]


def test_parts_take_the_time_of_one():
    tasks = PLANNED | {"eval_part": PLANNED["eval"]}
    one, four = (forecast_night(tasks, [], engine="native", parts=n, costs=Costs(hour=2.0)) for n in (1, 4))
    assert one.seconds.likely == four.seconds.likely == 7200
    assert (one.cost.likely, four.cost.likely) == (pytest.approx(4.0), pytest.approx(4.0 + 3 * 0.5 * 2.0))


def test_whole_evaluation_is_no_merge_that_took_long():
    """`pbg run` may finish a night that the DAG planned in parts."""
    merge = {"eval": PLANNED["eval"]._replace(seconds=60.0), "eval_part": PLANNED["eval"]}
    forecast = forecast_night(PLANNED | merge, [], engine="native").to_json() | {"calibrated_on": ["d1"]}
    evaluated = EvalResult.model_construct(**dict(result(PLANNED["eval"]._replace(seconds=6000.0))))
    found = compare(ForecastDocument.model_validate(forecast), {"eval": evaluated})
    assert (found["tasks"]["eval"]["seconds"]["actual"], found["warnings"]) == (6000.0, [])


def test_all_parts_are_paid_in_fact():
    part = PLANNED["eval"]._replace(seconds=600.0)
    forecast = forecast_night(PLANNED | {"eval_part": part}, [], engine="native", parts=4, costs=Costs(hour=2.0))
    merge = result(PLANNED["eval"]).model_dump()
    taken = Taken.model_validate(merge["usage"])
    parts = PartsTaken(count=4, seconds=600.0, all_seconds=1500.0, usage=taken)
    evaluated = EvalResult.model_construct(**merge | {"usage": taken, "parts": parts})
    found = compare(ForecastDocument.model_validate(forecast.to_json()), {"eval": evaluated})
    assert list(found["tasks"]) == ["eval_part", "eval"]
    assert found["tasks"]["eval_part"]["seconds"]["actual"] == 600
    assert found["total_seconds"] == {"forecast": 2400.0, "actual": 2400.0, "ratio": 1.0}
    assert found["cost"]["forecast"] == pytest.approx(2.0 * (2400 + 3 * 600) / 3600)
    assert found["cost"]["actual"] == pytest.approx(2.0 * (2400 + 900) / 3600)


@pytest.mark.parametrize(("ranks", "paid"), [(1, 1), (4, 4)])
def test_machines_that_trained_are_paid(ranks, paid):
    """`pbg run` trains alone, whatever the spec's launch is."""
    gang = forecast_night(PLANNED, [], engine="native", machines=4, ranks=4, costs=Costs(hour=2.0))
    trained = TrainResult.model_validate(result(PLANNED["train"]).document() | {"epochs": 1, "ranks": ranks})
    found = compare(ForecastDocument.model_validate(gang.to_json()), {"train": trained})
    assert found["cost"]["forecast"] == pytest.approx(2.0)
    assert found["cost"]["actual"] == pytest.approx(2.0 * paid)


def test_ranks_share_time_that_one_takes():
    night = MeasuredNight("d1-abc", "native", PLANNED, {"train": PLANNED["train"]})
    alone, gang = (
        forecast_night(PLANNED, [night], engine="native", machines=n, ranks=n, costs=Costs(hour=2.0)) for n in (1, 4)
    )
    assert gang.tasks["train"]["seconds"].likely == pytest.approx(alone.tasks["train"]["seconds"].likely / 4)
    assert gang.cost.likely == pytest.approx(alone.cost.likely)
