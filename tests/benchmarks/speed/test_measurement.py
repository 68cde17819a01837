from __future__ import annotations

import pytest

from benchmarks.speed.measurement import Measurement, Round, in_turns, per_second
from benchmarks.speed.table import HEADINGS, cells
from pbg_tasks.progress import aligned

OURS = [Round(100, 1.0, 2.0, 0), Round(100, 2.0, 2.0, 0), Round(100, 1.0, 4.0, 0)]
THEIRS = [Round(10, 1.0, 1.0, 0), Round(10, 1.0, 1.0, 0), Round(10, 4.0, 1.0, 0)]


def test_rounds_alternate_after_an_uncounted_one():
    order = []

    def side(name):
        def work():
            order.append(name)
            return Round(len(order), 1.0, 1.0, 0)

        return work

    rounds = in_turns(2, {"a": side("a"), "b": side("b")})
    assert order == ["a", "b"] * 3
    assert [done.value for done in rounds["a"]] == [3, 5]
    assert [done.value for done in rounds["b"]] == [4, 6]
    in_turns(1, {"a": side("c")}, warm_up=False)
    assert order.count("c") == 1


def test_rate_is_compared_pair_by_pair():
    found = Measurement.rate("step", "edges/cpu-s", OURS, THEIRS, target=12).to_json()
    assert (found["ours"], found["theirs"]) == (100, 10)
    assert (found["ratio_min"], found["ratio_median"], found["ratio_max"]) == (5, 10, 40)
    assert found["met"] is False
    assert Measurement.rate("step", "edges/s", OURS, THEIRS, per_second).ratios == (5, 5, 2.5)


def test_lower_cost_is_better():
    found = Measurement.cost("evaluation", "cpu-s", OURS, THEIRS)
    assert (found.ours, found.theirs, found.ratios) == (1, 1, (1, 0.5, 4))


def test_line_has_every_required_key_only():
    alone = Measurement("peak", "B", 123456.0, target=2e5, at_most=True, details={"base": 1.23456}).to_json()
    assert alone == {
        "name": "peak",
        "ours": 123500.0,
        "theirs": None,
        "unit": "B",
        "ratio_min": None,
        "ratio_median": None,
        "ratio_max": None,
        "target": 2e5,
        "at_most": True,
        "met": True,
        "details": {"base": 1.235},
    }


@pytest.mark.parametrize(("value", "at_most", "met"), [(0.02, True, True), (0.04, True, False), (0.04, False, True)])
def test_figure_without_ratios_is_compared_itself(value, at_most, met):
    assert Measurement("share", "share", value, target=0.03, at_most=at_most).met is met


def test_table_contains_figures_ratios_and_targets():
    compared = Measurement.rate("step", "edges/cpu-s", OURS, THEIRS, target=12)
    waiting = Measurement("waiting", "share", 0.021, target=0.03, at_most=True)
    lines = aligned([HEADINGS, *(cells(each.to_json()) for each in (compared, waiting))])
    assert lines[1].split("  ")[0] == "step"
    assert "10 (5 - 40)" in lines[1]
    assert lines[1].endswith("12: missed")
    assert "2.1%" in lines[2]
    assert lines[2].endswith("at most 3.0%: met")
