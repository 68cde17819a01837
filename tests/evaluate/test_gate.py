from __future__ import annotations

import json
import math

import pytest

from pbg_tasks.config import Gates
from pbg_tasks.evaluate import judge


def evaluation(mrr, *, split="test", sampled=False, candidates=120, raw=0.1):
    figures = {"raw": {"count": 10, "mrr": raw}, "filtered": {"count": 10, "mrr": mrr}}
    return figures | {"split": split, "sampled": sampled, "candidates": {"user": candidates}}


def failed(verdict):
    return [check.name for check in verdict.checks if not check.passed]


def test_a_good_first_night_passes():
    verdict = judge(Gates(min_mrr=0.2), evaluation(0.3), None)
    assert verdict.passed
    assert verdict.to_json()["passed"] is True


@pytest.mark.parametrize(
    ("gates", "mrr", "current", "expected"),
    [
        (Gates(min_mrr=0.4), 0.3, None, ["min_mrr"]),
        (Gates(max_mrr_drop=0.1), 0.26, 0.3, ["max_mrr_drop"]),
        (Gates(max_mrr_drop=0.1), 0.28, 0.3, []),
        (Gates(), math.nan, 0.3, ["finite", "min_mrr", "max_mrr_drop"]),
    ],
)
def test_each_limit_stops_what_it_is_for(gates, mrr, current, expected):
    verdict = judge(gates, evaluation(mrr), evaluation(current) if current else None)
    assert failed(verdict) == expected


@pytest.mark.parametrize(
    ("current", "words"),
    [
        (evaluation(0.9, split="valid"), "valid edges"),
        (evaluation(0.9, sampled=True), "a sample"),
        (evaluation(0.9, candidates=60), "60 candidates of type user then, 120 now"),
        (evaluation(0.9) | {"candidates": {"item": 120}}, "entity types"),
        (evaluation(math.nan), "is nan"),
        (evaluation(0.0), "is 0"),
        ({}, "is nan"),
    ],
)
def test_what_measures_something_else_is_not_compared(current, words):
    verdict = judge(Gates(max_mrr_drop=0.1), evaluation(0.1), current)
    assert verdict.passed
    (check,) = [check for check in verdict.checks if check.name == "max_mrr_drop"]
    assert check.value is None
    assert "not compared" in check.sentence
    assert words in check.sentence


def test_a_graph_that_grew_a_little_overnight_is_compared():
    verdict = judge(Gates(max_mrr_drop=0.1), evaluation(0.1, candidates=125), evaluation(0.9))
    assert failed(verdict) == ["max_mrr_drop"]


def test_embeddings_that_have_collapsed_are_stopped():
    health = {"n": {"cosine": 0.999, "problems": ["the embeddings have collapsed: their mean cosine is 0.9990"]}}
    verdict = judge(Gates(), evaluation(0.3) | {"health": health}, None)
    assert failed(verdict) == ["health of n"]


def test_any_figure_that_is_no_number_stops_a_release():
    verdict = judge(Gates(), evaluation(0.3, raw=math.inf), None)
    assert failed(verdict) == ["finite"]
    assert "raw mrr" in verdict.checks[0].sentence


def test_an_evaluation_of_nothing_does_not_pass():
    empty = {"raw": {"count": 0}, "filtered": {"count": 0}, "split": "test", "sampled": False, "candidates": {}}
    verdict = judge(Gates(), empty, None)
    assert failed(verdict) == ["finite", "min_mrr"]


def test_a_verdict_is_strict_json():
    verdict = judge(Gates(), evaluation(math.nan), evaluation(0.3))
    assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["passed"] is False
