"""Rolling back, drilling, pinning, skipping and collecting by commands."""

from __future__ import annotations

import json
import os
import shutil
import threading

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config import RunLayout
from pbg_tasks.errors import ConfigError, FormatError, InputError, StorageError
from pbg_tasks.publish import Channel, channel_names
from pbg_tasks.publish.skips import skip as mark_skipped
from pbg_tasks.publish.skips import when_skipped
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import CHAIN, RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.promote import promote_due
from pbg_tasks.tasks.nightly.publish import publish as publish_run
from pbg_tasks.tasks.release.releases import drill, gc, pin, rollback, skip, unpin
from pbg_tasks.tasks.view.days_left import broken_nights
from pbg_tasks.tasks.view.show import overview
from pbg_tasks.tasks.view.tables import overview_table
from tests.commands import pbg
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import ring


@pytest.fixture
def channel(place):
    return place.channel()


def publish(channel, *days):
    for day in days:
        before = channel.current().release
        write_run(channel.store, f"r{day}")
        fields = candidate(channel.store, f"r{day}", f"d{day}")
        channel.publish(fields, planned_on=before.seq if before else None)


def test_drill_moves_canary_and_leaves_the_channel(place, channel):
    assert drill(place.spec)["drilled"] is False
    publish(channel, 1, 2, 3)
    before = channel.store.get("channels/production/CURRENT.json")
    canary = Channel(channel.store, "production-drill")
    for _ in range(2):
        told = drill(place.spec)
        assert (told["drilled"], told["releases"]) == (True, [2, 3])
        assert all(seconds < 5 for seconds in told["seconds"].values())
        assert canary.current().release.run == "r3"
    assert [release.run for release in canary.releases()] == ["r2", "r3"]
    assert channel.store.get("channels/production/CURRENT.json") == before
    rollback(place.spec)
    assert drill(place.spec)["releases"] == [1, 2]  # the served release has changed, and the canary follows
    assert canary.current().release.run == "r2"


def test_store_is_listed_and_rolled_back(place, channel, monkeypatch):
    command, store = [str(place.store)], channel.store
    empty = CliRunner().invoke(app, ["releases", *command])
    assert (type(empty.exception), "no channel here points to a release" in str(empty.exception)) == (InputError, True)
    monkeypatch.chdir(place.root)
    place.write_spec(store="store", exports=[{"format": "qdrant", "destination": "http://localhost:9", "name": "q"}])
    place.snapshot("d2", ring(40))
    run = plan(place.spec, "d2")["run"].rpartition("/")[2]
    spec = store.get(f"runs/{run}/spec.json").data
    publish(channel, 1)
    store.delete(f"runs/{run}/spec.json")
    write_run(store, run)
    store.put(f"runs/{run}/spec.json", spec)
    channel.publish(candidate(store, run, "d2"), planned_on=1)
    for target in ("releases", *command), ("releases", str(place.spec)):
        rows = json.loads(CliRunner().invoke(app, [*target, "--json"]).stdout)
        assert [(row["release"], row["current"]) for row in rows] == [(1, False), (2, True)]
    moved = []
    monkeypatch.setattr("pbg_tasks.tasks.exchange.serving.follow_all", lambda *given: moved.append(given) or {})
    assert CliRunner().invoke(app, ["rollback", *command]).exit_code == 0
    ((graph, release),) = moved  # the sinks are those of the run's spec
    assert (graph.store, graph.exports[0].name, release.seq) == (store.url, "q", 1)
    store.delete("runs/r1/spec.json")
    with pytest.raises(ConfigError, match=r"run of release 1 has no spec any more.* name the graph spec"):
        rollback(str(place.store), to=2)
    channel = Channel(store, "shadow")
    write_run(store, "s1")
    channel.publish(candidate(store, "s1", "d1"), planned_on=None)
    with pytest.raises(ConfigError, match="has the channels production, shadow; choose with --channel"):
        rollback(str(place.store))
    with pytest.raises(InputError, match="channel 'third' points to no release"):
        rollback(str(place.store), channel="third")


def test_store_in_folder_called_runs_is_shown(place, channel):
    publish(channel, 1)
    channel.store.delete("runs/r1/spec.json")  # it is no whole one
    store = place.root / "runs" / "shop"
    store.parent.mkdir()
    place.store.rename(store)
    shown = CliRunner().invoke(app, ["show", str(store)])
    assert f"channel production of {store}" in shown.stdout
    other = CliRunner().invoke(app, ["show", f"{store}/runs/other"])
    assert f"{store}/runs/other: no such run" in str(other.exception)


def test_slow_drill_or_missing_file_fails(place, channel):
    publish(channel, 1, 2)
    with pytest.raises(StorageError, match=r"took \d+\.\d s; at most 0 s are allowed"):
        drill(place.spec, limit=0)
    channel.store.delete("runs/r1/release/model.v1.h5")
    with pytest.raises(FormatError, match=r"r1/release/model.v1.h5: missing"):
        drill(place.spec)


def test_pins_and_collections_by_command(place, channel):
    publish(channel, 1, 2, 3, 4)
    pin(place.spec, 1)
    for path in place.store.rglob("*"):  # a week passes
        if path.is_file() and ".pbg" not in path.parts:
            os.utime(path, (path.stat().st_mtime - 7 * 86400,) * 2)
    command = ["gc", str(place.store), "--keep-releases", "1", "--json"]
    untouched = CliRunner().invoke(app, command)  # as under a clock that is a week ahead
    assert json.loads(untouched.stdout)["runs"] == []
    assert json.loads(untouched.stdout)["unwatched_runs"] == ["r2"]
    assert "gc: left 1 runs that nothing needs" in untouched.stderr
    assert "; 4 releases stay, 1 of them for the grace of 72 h" in untouched.stderr
    assert json.loads(untouched.stdout)["kept_releases"] == 4
    assert "or --trust-clock does at once" in untouched.stderr
    days = CliRunner().invoke(app, ["gc", str(place.store), "--keep-days", "1", "--json"])
    assert json.loads(days.stdout)["silent_hours"] == 132.0
    assert "gc: 132.0 h before" in days.stderr
    assert "--trust-clock counts them" in days.stderr
    command.append("--trust-clock")
    told = json.loads(CliRunner().invoke(app, [*command, "--dry-run"]).stdout)
    assert (told["releases"], told["runs"]) == (["production/2"], ["r2"])
    assert [release.seq for release in channel.releases()] == [1, 2, 3, 4]
    assert json.loads(CliRunner().invoke(app, command).stdout) == {**told, "dry_run": False}
    assert [release.seq for release in channel.releases()] == [1, 3, 4]
    unpin(place.spec, 1)
    with pytest.raises(InputError, match="no release 2"):
        pin(place.spec, 2)
    assert gc(str(place.store), keep_days=30, grace_hours=0)["runs"] == []
    assert gc(str(place.store), keep_releases=2, grace_hours=72, trust_clock=True)["runs"] == ["r1"]


def test_collection_without_runs_or_releases_reports_it(tmp_path, place, channel):
    mistyped = CliRunner().invoke(app, ["gc", str(tmp_path / "mistyped")])
    assert mistyped.exit_code == 0
    assert f"gc: {tmp_path / 'mistyped'} holds no run and no release" in mistyped.stderr
    assert not (tmp_path / "mistyped").exists()
    publish(channel, "d1")
    assert "holds no run" not in CliRunner().invoke(app, ["gc", str(place.store)]).stderr


def test_collection_of_spec_names_its_store(place):
    refused = pbg("gc", place.spec)
    assert refused.returncode == ConfigError.exit_code
    assert refused.stderr == (
        f"error: config: {place.spec}: a graph spec; gc takes the graph's store: `pbg gc {place.store}`\n"
    )


def test_collection_of_file_is_refused(tmp_path):
    file = tmp_path / "edges.parquet"
    file.write_bytes(b"PAR1")
    refused = pbg("gc", file)
    assert refused.returncode == ConfigError.exit_code
    assert refused.stderr == (
        f"error: config: {file}: is a file, not a directory; name a directory or s3://bucket/prefix\n"
    )


def test_unknown_release_is_refused_with_advice(place, channel):
    publish(channel, "d1")
    with pytest.raises(InputError, match=r"has no release 9; `pbg releases` lists those it has"):
        rollback(place.spec, to=9)


def test_skip_is_kept_with_its_first_reason(place, channel):
    skip(place.spec, "d6", reason="half of it is missing")
    skip(place.spec, "d6")
    assert when_skipped(channel, "d6") is not None
    document = json.loads(channel.store.get("channels/production/skipped/d6.json").data)
    assert document["reason"] == "half of it is missing"


def test_skip_refuses_key_unlike_all_known(place, channel):
    place.write_spec()
    skip(place.spec, "x-a")  # nothing is known yet that a key could resemble
    publish(channel, 1, 2)
    for unlike in ("dd2", "2026-11-20"):
        with pytest.raises(ConfigError, match=rf"has a key like '{unlike}'; such keys are 'd2'$"):
            skip(place.spec, unlike)
        assert when_skipped(channel, unlike) is None
    skip(place.spec, "d30")
    assert when_skipped(channel, "d30") is not None


def test_skip_takes_keys_of_releases_and_calendar(place, channel):
    place.write_spec(nights={"calendar": {"cron": "0 2 * * *"}})
    with pytest.raises(ConfigError, match=r"such keys are '20"):
        skip(place.spec, "d9")
    publish(channel, 1)
    for key in ("d9", "2026-11-20"):
        skip(place.spec, key)
        assert when_skipped(channel, key) is not None


@pytest.mark.parametrize("adopted", ["0", "v1"])
def test_skip_takes_days_after_adopted_checkpoint(place, channel, adopted):
    write_run(channel.store, "r0")
    night_zero = candidate(channel.store, "r0", adopted) | {"data": {"adopted": "s3://old/model"}}
    channel.publish(night_zero, planned_on=None)
    skip(place.spec, "2026-11-20")
    assert when_skipped(channel, "2026-11-20") is not None


def test_skip_knows_day_of_adopted_checkpoint(place, channel):
    write_run(channel.store, "r0")
    adopted = candidate(channel.store, "r0", "2026-11-19") | {"data": {"adopted": "s3://old/model"}}
    channel.publish(adopted, planned_on=None)
    with pytest.raises(ConfigError, match=r"has a key like '20261120'; such keys are '2026-11-19'$"):
        skip(place.spec, "20261120")


@pytest.mark.parametrize("day", ["2026-11-99", "2026-02-29", "2026-13-01T02"])
def test_skip_refuses_day_of_no_month(place, channel, day):
    place.write_spec(nights={"calendar": {"cron": "0 2 * * *"}})
    with pytest.raises(ConfigError, match=rf"^snapshot '{day}': {day[:10]} is no date \(.*\); name a day that exists$"):
        skip(place.spec, day)
    assert when_skipped(channel, day) is None


def test_skip_of_released_day_names_release(place, channel, capsys):
    publish(channel, 1, 2)
    skip(place.spec, "d2")
    said = capsys.readouterr().err
    assert "skip: d2 has release 2 of channel production already, so no night waits for it" in said
    assert "go on without" not in said


def test_show_of_skipped_day_advises_no_approval(place, channel):
    skip(place.spec, "d6", reason="half of it is missing")
    told = "days without a release, which nights go on without:\n  d6: half of it is missing"
    assert overview_table(overview(place.spec)).endswith(told)
    mark_skipped(channel, "d7", "33% of the edges are gone (run d7-1f)", planned=1.0)
    assert overview_table(overview(place.spec)).endswith("`pbg approve` lets pass what a gate refused")


def test_night_of_removed_channel_reports_way_back(place, channel):
    place.write_spec({"num_epochs": 1})
    place.snapshot("d1", ring(40))
    place.snapshot("d2", ring(42))
    run, later = (RunContext.open(run_chain(place.spec, day)["run"]) for day in ("d1", "d2"))
    shutil.rmtree(place.store / "channels" / "production")
    publish(channel, 1)  # of another run
    told = publish_run(run.url)
    assert told["published"] is False
    assert told["reason"].endswith("serves release 1 now; release 1 is lost; plan the snapshot 'd1' again")
    shutil.rmtree(place.store / "channels" / "production")
    told, result = publish_run(run.url), run.key(RunLayout.result("publish"))
    assert told["published"] is False
    assert told["reason"].endswith(f"has lost its releases since; remove {place.store}/{result} and run it again")
    assert publish_run(later.url)["reason"].endswith("has lost its releases since; plan the snapshot 'd2' again")
    for night in run, later:  # the second continues the release that the first has again
        again = night.key(RunLayout.result("publish"))
        assert publish_run(night.url)["reason"].endswith(f"remove {place.store}/{again} and run it again")
        night.store.delete(again)
        assert publish_run(night.url)["published"]
        assert channel.current().release.run == night.run_id


def test_independent_night_of_lost_release_publishes_again(place, channel):
    """A plan makes the same run, which would have the same reason."""
    place.write_spec({"num_epochs": 1}, nights={"walk": "independent"})
    place.snapshot("d1", ring(40))
    run = RunContext.open(run_chain(place.spec, "d1")["run"])
    shutil.rmtree(place.store / "channels" / "production")
    publish(channel, 1)  # of another run
    result = run.key(RunLayout.result("publish"))
    assert publish_run(run.url)["reason"].endswith(f"is lost; remove {place.store}/{result} and run it again")


def test_channel_changed_after_plan_leaves_night_alone(place):
    place.write_spec({"num_epochs": 1})
    place.snapshot("d1", ring(40))
    run = plan(place.spec, "d1")["run"]
    place.write_spec({"num_epochs": 1}, channel="shadow", promote={"to": "production", "after_nights": 1})
    for task in CHAIN[1:]:
        found = run_task(task, run)
    assert (found["channel"], found["release"]) == ("production", 1)
    store = open_store(str(place.store))
    assert channel_names(store) == ["production"]
    assert promote_due(place.spec)["reason"] == "channel shadow has no release yet"
    assert Channel(store, "production").current().release.run == run.rpartition("/")[2]


def test_failed_nights_are_read_side_by_side(place, channel, monkeypatch):
    place.write_spec(nights={"walk": "independent"})
    for day in ("d1", "d2"):
        place.snapshot(day, [*ring(40), ("", "next", "e1")])
        with pytest.raises(InputError):
            run_task("validate", plan(place.spec, day)["run"])
    both, within = threading.Barrier(2, timeout=10), RunContext.within
    monkeypatch.setattr(RunContext, "within", lambda store, name: both.wait() < 2 and within(store, name))
    nights = broken_nights(channel.store)["production"]
    assert [night["snapshot"] for night in nights] == ["d1", "d2"]
