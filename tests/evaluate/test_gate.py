from __future__ import annotations

import math

import pytest

from pbg_tasks.config import Gates
from pbg_tasks.evaluate import judge

DATA = {"edges": 1000, "entities": {"total": 120, "new": 20, "kept": 90, "gone": 10}}


def evaluation(mrr, *, split="test", sampled=False):
    return {"filtered": {"mrr": mrr}, "split": split, "sampled": sampled}


def failed(verdict):
    return [check.name for check in verdict.checks if not check.passed]


def test_a_good_first_night_passes():
    verdict = judge(Gates(min_mrr=0.2), evaluation(0.3), None, DATA)
    assert verdict.passed
    assert verdict.to_json()["passed"] is True


@pytest.mark.parametrize(
    ("gates", "mrr", "current", "expected"),
    [
        (Gates(min_mrr=0.4), 0.3, None, ["min_mrr"]),
        (Gates(min_edges=1001), 0.3, None, ["min_edges"]),
        (Gates(max_gone_entities=0.05), 0.3, None, ["max_gone_entities"]),
        (Gates(max_mrr_drop=0.1), 0.26, 0.3, ["max_mrr_drop"]),
        (Gates(max_mrr_drop=0.1), 0.28, 0.3, []),
        (Gates(), math.nan, 0.3, ["finite", "min_mrr", "max_mrr_drop"]),
    ],
)
def test_each_limit_stops_what_it_is_for(gates, mrr, current, expected):
    verdict = judge(gates, evaluation(mrr), evaluation(current) if current else None, DATA)
    assert failed(verdict) == expected


def test_figures_of_other_splits_are_not_compared():
    verdict = judge(Gates(max_mrr_drop=0.1), evaluation(0.1), evaluation(0.9, split="valid"), DATA)
    assert verdict.passed
    assert any("not compared" in check.sentence for check in verdict.checks)
