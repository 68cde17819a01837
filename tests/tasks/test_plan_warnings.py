"""Warnings of ``plan`` about keys, and a start that is missing."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from pbg_tasks.errors import AccessError, ConfigError
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
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
    [
        ("{snapshot}-*.tsv", "2026", True),
        ("{snapshot}_*.tsv", "2026-11-20", False),
        ("{snapshot}-20-a.tsv", "2026-11", False),
    ],
)
def test_plan_warns_of_key_within_dates(place, capsys, location, snapshot, warned):
    snapshots = {"location": f"{place.root}/edges/{location}", "format": "tsv"}
    place.write_spec(model=QUICK, nights={"walk": "independent"}, snapshots=snapshots)
    for name in ("2026-11-20-a", "2026-11-21-a", "2026-11-20_a"):
        place.snapshot(name, ring(40))
    plan(place.spec, snapshot)
    said = capsys.readouterr().err
    assert (f"snapshot {snapshot!r} has the files of 2026-11-20 to 2026-11-21; if each day" in said) is warned
    assert ("has the files of" in said) is warned


def test_plan_refuses_start_that_holds_nothing(place):
    """Else training refuses it after hours; warm nights do not read it."""
    start = place.root / "init"
    place.write_spec(model=QUICK | {"init_path": str(start)})
    place.snapshot("d1", ring(40))
    with pytest.raises(ConfigError, match=r"graph.yaml: model\.init_path: .*/init holds nothing, so training has"):
        plan(place.spec, "d1")
    start.mkdir()
    (start / "node.parquet").write_bytes(b"")  # training examines it
    run_task("validate", plan(place.spec, "d1")["run"])
    (start / "node.parquet").unlink()
    plan(place.spec, "d1")  # the run has begun
    place.write_spec(model=QUICK)
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(41))
    place.write_spec(model=QUICK | {"init_path": str(start)})
    assert plan(place.spec, "d2")["warm_start"]


def test_plan_leaves_start_it_cannot_read(place, monkeypatch):
    """Pods may have its directory, or the rights to list it."""
    start = place.root / "init"
    place.write_spec(model=QUICK | {"init_path": str(start)})
    place.snapshot("d1", ring(40))
    with monkeypatch.context() as patch:
        patch.setattr("pbg_tasks.tasks.nightly.plan.is_remote", lambda url: url != str(start))
        plan(place.spec, "d1")
    monkeypatch.setattr("pbg_tasks.tasks.nightly.plan.open_store", Mock(side_effect=AccessError("not for plan")))
    plan(place.spec, "d1")
