"""Warnings of ``plan`` about keys of snapshots."""

from __future__ import annotations

import pytest

from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}


@pytest.mark.parametrize(
    ("calendar", "warned"),
    [
        ({"cron": "0 * * * *", "timezone": "Europe/Berlin", "key_format": "%Y-%m-%dT%H"}, True),
        ({"cron": "0 * * * *", "key_format": "%Y-%m-%dT%H"}, False),
        ({"cron": "0 * * * *", "timezone": "Europe/Berlin"}, False),
        ({"cron": "0 2 * * *", "timezone": "Europe/Berlin", "key_format": "%Y-%m-%dT%H"}, False),
        ({"cron": "0 8-18 * * *", "timezone": "Europe/Berlin", "key_format": "%Y-%m-%dT%H"}, False),
        ({"cron": "0 */2 * * *", "timezone": "Europe/Berlin", "key_format": "%Y-%m-%dT%H"}, False),
    ],
)
def test_plan_warns_of_hours_that_come_twice(place, capsys, calendar, warned):
    place.write_spec(model=QUICK, nights={"calendar": calendar})
    place.snapshot("2026-11-20T02", ring(40))
    plan(place.spec, "2026-11-20T02")
    said = capsys.readouterr().err
    assert ("where clocks in Europe/Berlin go back, two hours have the key '20" in said) is warned
    assert ("T02', and their nights one snapshot" in said) is warned


@pytest.mark.parametrize(
    ("location", "snapshot", "warned"),
    [("{snapshot}-*.tsv", "2026", True), ("{snapshot}_*.tsv", "2026-11-20", False)],
)
def test_plan_warns_of_key_within_dates(place, capsys, location, snapshot, warned):
    snapshots = {"location": f"{place.root}/edges/{location}", "format": "tsv"}
    place.write_spec(model=QUICK, nights={"walk": "independent"}, snapshots=snapshots)
    for name in ("2026-11-20-a", "2026-11-21-a", "2026-11-20_a"):
        place.snapshot(name, ring(40))
    plan(place.spec, snapshot)
    said = capsys.readouterr().err
    assert (f"snapshot {snapshot!r} has the files of 2026-11-20 to 2026-11-21; if each day" in said) is warned
