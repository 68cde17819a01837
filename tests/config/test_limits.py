from __future__ import annotations

import json
import math

import pytest

from pbg_tasks.config.base import parse
from pbg_tasks.config.gates import Gates
from pbg_tasks.config.limits import AtLeast, AtMost, Check, Verdict, percent
from pbg_tasks.errors import ConfigError


@pytest.mark.parametrize(
    ("limit", "value", "passed", "warned", "named"),
    [
        (AtMost(warn=1, block=2), 1.0, True, False, 2),
        (AtMost(warn=1, block=2), 1.5, True, True, 1),
        (AtMost(warn=1, block=2), 2.0, True, True, 1),
        (AtMost(warn=1, block=2), 2.5, False, False, 2),
        (AtMost(warn=1), 9.0, True, True, 1),
        (AtLeast(warn=2, block=1), 2.0, True, False, 1),
        (AtLeast(warn=2, block=1), 1.5, True, True, 2),
        (AtLeast(warn=2, block=1), 0.5, False, False, 1),
        (AtLeast(block=1), math.nan, False, False, 1),
        (AtMost(warn=1), math.nan, True, True, 1),
        (AtMost(), 1e9, True, False, None),
    ],
)
def test_limit_passes_warns_or_blocks(limit, value, passed, warned, named):
    check = limit.judge("figure", value, "so much")
    assert (check.passed, check.warned, check.limit) == (passed, warned, named)
    assert json.dumps(check.value, allow_nan=False)


def test_sentence_has_figure_and_limit():
    assert AtMost(block=0.25).judge("x", 0.5, "50 % are gone", "{:.1%}").sentence == (
        "50 % are gone, at most 25.0% allowed"
    )
    assert AtLeast(block=3).judge("x", 2, "2 edges").sentence == "2 edges, at least 3 asked"


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, "0.0%"),
        (0.0001, "0.01%"),
        (0.00012, "0.012%"),
        (-0.0001, "-0.01%"),
        (1 / 3e6, "0.000033%"),
        (0.005, "0.5%"),
        (0.009999, "1%"),
        (0.01, "1.0%"),
        (0.25, "25.0%"),
        (12.5, "1250.0%"),
        (math.nan, "nan%"),
        (math.inf, "inf%"),
    ],
)
def test_percent_shows_two_digits_of_small_share(share, shown):
    assert percent(share) == shown


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"max_removed_edges": {"warn": 0.5, "block": 0.2}}, "data.max_removed_edges: warn 0.5 would never warn"),
        ({"min_volume": {"warn": 0.2, "block": 0.5}}, "data.min_volume: warn 0.2 would never warn"),
        ({"max_duplicates": {"block": -1}}, "data.max_duplicates.block: Input should be greater than or equal to 0"),
        ({"max_duplicates": {"blok": 1}}, "unknown key 'data.max_duplicates.blok'; did you mean 'block'?"),
        ({"max_remove_edges": {}}, "did you mean 'max_removed_edges'?"),
        ({"max_duplicates": 0.1}, "data.max_duplicates: takes keys, not a value alone; known keys: block, warn"),
        ({"changed_columns": "maybe"}, "data.changed_columns: Input should be 'ignore', 'warn' or 'block'"),
    ],
)
def test_bad_limits_are_refused_by_name(data, message):
    with pytest.raises(ConfigError) as caught:
        parse(Gates, {"data": data}, source="gates")
    assert message in str(caught.value)


def test_refusal_names_what_else_blocked():
    checks = [Check(f"c{number}", number == 1, None, None, f"sentence {number}") for number in range(7)]
    assert Verdict(tuple(checks[:2])).refusal == "sentence 0"
    assert Verdict(tuple(checks[:4])).refusal == "sentence 0; it also failed c2, c3"
    assert Verdict(tuple(checks)).refusal == "sentence 0; it also failed c2, c3, c4, 2 more"
    assert Verdict((checks[1],)).refusal is None
