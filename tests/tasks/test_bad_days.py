"""Short campaign of bad days, as in ``python -m tests.bad_days``."""

from __future__ import annotations

import random
from datetime import date, timedelta

import pytest

from tests.bad_days import (
    BAD_AS_COLLECTED,
    CORRECTED,
    DEFECTS,
    FIRST_DAYS,
    LATE,
    MISSING,
    Campaign,
    first_day,
    generated,
    summary,
)

MODEL = {"dimension": 16, "num_epochs": 12, "num_uniform_negs": 100}


@pytest.mark.rotated(3)
@pytest.mark.parametrize("walk", ["chain", "independent"])
def test_no_defect_reaches_production(tmp_path, scratch, walk):
    campaign, rng = Campaign(tmp_path / "graph", walk, MODEL), random.Random(1)
    defects = [*[""] * FIRST_DAYS, *DEFECTS, MISSING, LATE, CORRECTED, ""]
    days = zip(generated(len(defects), seed=1, entities=100), defects, strict=True)
    found = [campaign.day(day, edges, defect, rng) for (day, edges), defect in days]
    assert [each for each in found if each.problem] == [], summary(found)
    outcomes = {each.defect.partition(" (")[0]: each.outcome for each in found}
    expected = dict.fromkeys(DEFECTS, "refused") | {MISSING: "missing", LATE: "published", CORRECTED: "published"}
    assert outcomes == expected | {"": "published"}


def bad_days(seed, *, real):
    there = [str(date(1998, 9, 1) + timedelta(number)) for number in range(400)]
    start = there.index(first_day(there, 10, seed, real=real))
    return BAD_AS_COLLECTED.intersection(there[start : start + 10])


def test_campaign_of_collected_days_has_bad_ones():
    assert bad_days(1, real=True) == {"1999-08-29", "1999-08-31"}


def test_other_campaigns_avoid_days_that_are_bad():
    assert set[str]().union(*(bad_days(seed, real=False) for seed in range(200))) == set()
