from __future__ import annotations

import pytest

from pbg_tasks.progress import human_count
from pbg_tasks.report import numbers


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (numbers.count, 1234567, "1,234,567"),
        (numbers.signed, -4880, "−4,880"),  # noqa: RUF001 - the minus sign
        (numbers.score, 0.12444671, "0.1244"),
        (numbers.score, 0.0000141234, "1.41e−05"),  # noqa: RUF001 - the minus sign
        (numbers.score, 0.0, "0.0000"),
        (numbers.score, float("nan"), numbers.NONE),
        (numbers.percent, 0.22506, "22.5 %"),
        (numbers.percent, 0.000214, "0.021 %"),  # Hits@10 among millions of entities
        (numbers.percent, 0.0, "0.0 %"),
        (numbers.percent, float("nan"), numbers.NONE),
        (numbers.size, 54969758, "55 MB"),
        (numbers.size, 999, "999 B"),
        (numbers.size, 999_600, "1 MB"),
        (numbers.money, 0.01066, "0.0107"),
        (numbers.money, 0.0, "0.00"),
        (numbers.money, 12345.678, "12,345.68"),
        (numbers.seconds, 0.527, "0.5 s"),
        (numbers.seconds, 125, "2 min 05 s"),
        (numbers.seconds, 11400, "3 h 10 min"),
        (numbers.seconds, 59.7, "1 min 00 s"),
        (numbers.seconds, 3599.7, "1 h 00 min"),
        (numbers.moment, 0.0, "1970-01-01 00:00"),
        (numbers.count, None, numbers.NONE),
    ],
)
def test_figures_are_written_for_people(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0012, "score", "+0.0012"), (-0.001, "percent", "−0.1 pp"), (-23.0, "seconds", "−23 s"), (544, "count", "+544")],  # noqa: RUF001 - the minus sign
)
def test_differences_are_written_with_signs(value, unit, text):
    assert numbers.change(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "beside", "text"),
    [
        (-0.00005, "score", 0.00025, "−5e−05"),  # noqa: RUF001 - the minus sign
        (0.0012, "score", 0.0042, "+0.0012"),
        (0.00031, "percent", 0.0005, "+0.031 pp"),
        (-0.0298, "score", 0.0002, "−0.0298"),  # noqa: RUF001 - the minus sign
        (-0.00004, "score", 0.3, "+0.0000"),
    ],
)
def test_difference_of_small_figures_has_their_digits(value, unit, beside, text):
    assert numbers.change(value, unit, beside) == text


@pytest.mark.parametrize(("unit", "text"), [("score", "+0.0000"), ("percent", "+0.0 pp"), ("count", "+0")])
def test_difference_that_rounds_to_zero_is_no_loss(unit, text):
    assert numbers.change(-0.00004, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999_499, "999 k"),
        (999_600, "1 M"),
        (-999_600, "-1 M"),
        (999.6, "1 k"),
        (12, "12"),
        (999_600_000_000, "1 T"),
        (2.5e12, "2.5 T"),
    ],
)
def test_count_near_next_unit_has_that_unit(value, text):
    assert human_count(value) == text
