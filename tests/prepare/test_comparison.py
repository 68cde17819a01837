from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.prepare.comparison import Volume, changed_columns, degree_distance, volumes

histograms = st.lists(st.integers(0, 50), max_size=6)


def test_volumes_of_two_windows():
    assert volumes(10, []) == []
    assert volumes(10, [20]) == [Volume(7, 1, 20, 0.5)]
    assert volumes(30, [1] * 21 + [10] * 7) == [Volume(7, 7, 10, 3.0), Volume(28, 28, 1, 30.0)]
    assert volumes(30, [99, 1] + [10] * 27) == [Volume(7, 7, 10, 3.0), Volume(28, 28, 10, 3.0)]


@given(histograms, histograms)
def test_distance_is_that_of_the_distributions(before, now):
    expected = 0.0
    if sum(before) and not sum(now):
        expected = 1.0  # nothing could have changed more; a new type has nothing to be compared with
    elif sum(before):
        expected = max(abs(sum(before[:k]) / sum(before) - sum(now[:k]) / sum(now)) for k in range(8))
    assert degree_distance(before, now) == pytest.approx(expected, abs=1e-6)


def test_shift_of_all_entities_has_distance_one():
    assert degree_distance([7], [0, 7]) == 1.0


def test_removed_type_has_distance_one_new_none():
    assert degree_distance([5, 5, 5], []) == 1.0
    assert degree_distance([], [5, 5, 5]) == degree_distance([], []) == 0.0


def test_removed_added_and_changed_columns_are_found():
    before = {"lhs": ["VARCHAR"], "weight": ["FLOAT"], "day": ["DATE"]}
    now = {"lhs": ["VARCHAR"], "weight": ["DOUBLE", "FLOAT"], "hour": ["INTEGER"]}
    assert changed_columns(before, now) == [
        "column 'day' is gone",
        "column 'hour' is new",
        "column 'weight' is DOUBLE or FLOAT, was FLOAT",
    ]
    assert changed_columns(now, now) == []
