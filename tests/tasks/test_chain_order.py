"""The order of a chain, kept by the contents of the store."""

from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec, RunSpec
from pbg_tasks.config.base import parse
from pbg_tasks.config.graph import Snapshots
from pbg_tasks.config.nights import Nights
from pbg_tasks.errors import ConfigError, OutOfTurnError
from pbg_tasks.prepare import sources
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip, why_skipped
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.approval import under_way
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain_order import release_to_continue
from tests.publish.runs import candidate, write_run
from tests.publish.turned_store import TurnedStore
from tests.tasks.conftest import MODEL

CHAIN = Nights()


@pytest.fixture
def channel(tmp_path):
    return Channel(open_store(str(tmp_path / "store")), "production")


@pytest.fixture
def snapshots(tmp_path):
    for day in range(1, 12):
        (tmp_path / "edges" / f"d{day}").mkdir(parents=True)
    (tmp_path / "edges" / "_temporary").mkdir()
    return Snapshots(location=f"{tmp_path}/edges/{{snapshot}}/*.parquet")


def release(channel, day):
    previous = channel.before(f"d{day}")
    write_run(channel.store, f"r{day}")
    planned_on = previous.seq if previous else None
    channel.publish(candidate(channel.store, f"r{day}", f"d{day}"), planned_on=planned_on)


def continued(channel, snapshots, day, nights=CHAIN):
    found = release_to_continue(channel, nights, snapshots, f"d{day}")
    return found and found.snapshot


def test_chain_begins_anywhere_and_continues_in_order(channel, snapshots):
    assert continued(channel, snapshots, 8) is None
    release(channel, 8)
    assert continued(channel, snapshots, 9) == "d8"
    with pytest.raises(OutOfTurnError, match=r"'d10' continues that of 'd9', of which .* no release; .* SPEC d9"):
        continued(channel, snapshots, 10)  # by number: as text, d10 would come before d8
    release(channel, 9)
    assert continued(channel, snapshots, 10) == "d9"


def test_snapshot_listed_as_another_is_refused(channel, tmp_path):
    for name in ("2026-11-01-a.csv", "2026-11-02_a.csv"):
        (tmp_path / name).write_text("")
    short = Snapshots(location=f"{tmp_path}/{{snapshot}}-*.csv", format="csv")
    with pytest.raises(ConfigError, match="files of snapshot '2026-11-01' are listed as '2026', because a key ends"):
        release_to_continue(channel, CHAIN, short, "2026-11-01")
    whole = Snapshots(location=f"{tmp_path}/{{snapshot}}_*.csv", format="csv")
    assert release_to_continue(channel, CHAIN, whole, "2026-11-02") is None


def test_location_is_listed_once(channel, tmp_path, monkeypatch):
    """A flat folder of many files takes many requests."""
    asked = []
    monkeypatch.setattr(sources, "snapshot_keys", lambda _: asked.append(1) or ["d1", "d2"])
    release(channel, 1)
    flat = Snapshots(location=f"{tmp_path}/{{snapshot}}_*.csv", format="csv")
    assert continued(channel, flat, 2) == "d1"
    assert len(asked) == 1


def test_chain_with_a_first_night_waits_for_it(channel, snapshots):
    nights = Nights(first="d3")
    assert continued(channel, snapshots, 3, nights) is None
    with pytest.raises(OutOfTurnError, match="'d4' continues that of 'd3'"):
        continued(channel, snapshots, 4, nights)
    with pytest.raises(ConfigError, match=r"'d2' comes before nights\.first"):
        continued(channel, snapshots, 2, nights)


def test_first_of_several_open_nights_is_named(channel, snapshots):
    release(channel, 4)
    skip(channel, "d6", "half of it is missing")
    with pytest.raises(OutOfTurnError, match=r"3 nights are open before it: run 'd7' first, .* `pbg skip SPEC d9`"):
        continued(channel, snapshots, 10)  # d7 does not wait for d5
    with pytest.raises(OutOfTurnError, match="; run it first, or go on without 'd7'"):
        continued(channel, snapshots, 8)
    later = Nights(first="d9")
    with pytest.raises(OutOfTurnError, match=r"2 nights are open before it: run 'd9' first"):
        continued(channel, snapshots, 11, later)


def test_days_without_snapshot_are_no_gap(channel, snapshots, tmp_path):
    release(channel, 5)
    for day in (6, 7):
        (tmp_path / "edges" / f"d{day}").rmdir()
    assert continued(channel, snapshots, 8) == "d5"


def test_skipped_night_is_passed_over(channel, snapshots):
    release(channel, 5)
    skip(channel, "d6", "half of it is missing")
    assert continued(channel, snapshots, 7) == "d5"


def test_newest_run_of_a_day_decides(snapshots, tmp_path):
    store = TurnedStore(tmp_path / "turned")
    channel = Channel(store, "production")
    release(channel, 5)

    def planned(lr):
        graph = {"graph": "g", "store": "/nowhere", "snapshots": {"location": "/nowhere/{snapshot}.tsv"}}
        spec = RunSpec(
            graph=parse(GraphSpec, graph | {"model": MODEL | {"lr": lr}}, source="spec"), snapshot="d6", files=()
        )
        run = RunContext(store, spec.run_id, spec, spec.to_bytes())
        run.store_spec()
        run.begin()
        store.now += 60
        return run

    older, newer = planned(0.1), planned(0.2)
    older.refuse("half of it is missing")  # later than the newer run was planned
    with pytest.raises(OutOfTurnError, match="'d7' continues that of 'd6'"):
        continued(channel, snapshots, 7)
    assert [night.run_id for night in under_way(store, lambda _: True)] == [newer.run_id]
    store.now += 60
    newer.refuse("its training diverged")
    assert continued(channel, snapshots, 7) == "d5"
    assert why_skipped(channel, "d6") == f"its training diverged (run {newer.run_id})"
    older.begin()  # planned again, it is the newest
    store.now += 60
    with pytest.raises(OutOfTurnError, match="'d7' continues that of 'd6'"):
        continued(channel, snapshots, 7)
    newest = planned(0.3)
    newest.refuse("nothing was held out")
    older.refuse("half of it is missing")
    assert continued(channel, snapshots, 7) == "d5"
    assert why_skipped(channel, "d6") == f"nothing was held out (run {newest.run_id})"


def continued_or_waits(store, snapshots):
    try:
        return continued(Channel(store, "production"), snapshots, 7)
    except OutOfTurnError:
        return "waits"


def to_publish(root):
    """Release d5, and return a function that publishes d6."""
    store = TurnedStore(root)
    release(Channel(store, "production"), 5)
    write_run(store, "r6")
    fields = candidate(store, "r6", "d6")
    return store, lambda: Channel(store, "production").publish(fields, planned_on=1)


def test_night_published_meanwhile_is_not_passed_over(snapshots, tmp_path):
    for after in range(1, 60):
        store, publish = to_publish(tmp_path / f"turned{after}")
        store.interrupt(after, publish)
        found = continued_or_waits(store, snapshots)
        if not store.calm():
            assert found == "waits"
            return  # d6 would be published after all was done
        assert found in {"waits", "d6"}
    pytest.fail("d6 was published in between every time: the range is too short")


def test_night_that_is_half_published_is_awaited(snapshots, tmp_path):
    for after in range(1, 60):
        store, publish = to_publish(tmp_path / f"turned{after}")
        found = []
        store.interrupt(after, lambda store=store, found=found: found.append(continued_or_waits(store, snapshots)))
        publish()
        if not store.calm():
            return  # d7 would be planned after all was done
        assert [*found, continued_or_waits(store, snapshots)] in (["waits", "d6"], ["d6", "d6"])
    pytest.fail("d7 was planned in between every time: the range is too short")


def test_night_after_rollback_continues_the_served_release(channel, snapshots):
    for day in (5, 6):
        release(channel, day)
    channel.rollback()
    assert continued(channel, snapshots, 7) == "d5"


def test_older_days_never_continue_a_later_one(channel, snapshots):
    release(channel, 9)
    assert continued(channel, snapshots, 3) is None
    release(channel, 3)
    assert channel.current().release.snapshot == "d9"
    assert continued(channel, snapshots, 4) == "d3"
    release(channel, 4)
    assert continued(channel, snapshots, 5) == "d4"
    assert continued(channel, snapshots, 10) == "d9"


def test_redo_continues_the_release_it_did_before(channel, snapshots):
    for day in (5, 6):
        release(channel, day)
    assert continued(channel, snapshots, 6) == "d5"


def redo(channel, snapshots, day):
    """Repeat a released day as a chain does; return its predecessor."""
    before = release_to_continue(channel, CHAIN, snapshots, f"d{day}")
    write_run(channel.store, f"again{day}")
    planned_on = before.seq if before else None
    channel.publish(candidate(channel.store, f"again{day}", f"d{day}"), planned_on=planned_on)
    return before and before.run


def test_days_redone_in_order_continue_each_other(channel, snapshots):
    for day in (4, 5, 6, 7):
        release(channel, day)
    assert [redo(channel, snapshots, day) for day in (5, 6, 7)] == ["r4", "again5", "again6"]
    assert channel.current().release.run == "again7"
    assert release_to_continue(channel, CHAIN, snapshots, "d7").run == "again6"
    assert release_to_continue(channel, CHAIN, snapshots, "d8").run == "again7"


def test_redo_continues_no_rolled_back_release(channel, snapshots):
    for day in (5, 6):
        release(channel, day)
    channel.rollback()
    release(channel, 7)
    assert continued(channel, snapshots, 7) == "d5"
    assert redo(channel, snapshots, 6) == "r5"  # the bad night, mended
    assert release_to_continue(channel, CHAIN, snapshots, "d7").run == "again6"


def test_redo_of_older_day_continues_no_rolled_back(channel, snapshots):
    for day in (5, 6):
        release(channel, day)
    channel.rollback()
    for day in (7, 8):
        release(channel, day)
    assert [redo(channel, snapshots, day) for day in (7, 8)] == ["r5", "again7"]
    assert channel.current().release.run == "again8"
    assert redo(channel, snapshots, 6) == "r5"  # the bad night, mended
    assert release_to_continue(channel, CHAIN, snapshots, "d7").run == "again6"


def test_redo_continues_older_night_released_late(channel, snapshots):
    for day in (5, 7, 8):
        if day == 7:
            skip(channel, "d6", "refused")
        release(channel, day)
    release(channel, 6)  # approved after all: recorded, never served
    assert redo(channel, snapshots, 7) == "r6"
    assert continued(channel, snapshots, 8) == "d7"


def test_redo_without_kept_predecessor_continues_newest_older(channel, snapshots):
    for day in (5, 6, 7, 8):
        release(channel, day)
    channel.store.delete(channel.release_key(3))
    assert continued(channel, snapshots, 7) == "d6"


def test_independent_nights_continue_nothing_and_never_wait(channel, snapshots):
    release(channel, 5)
    assert continued(channel, snapshots, 9, Nights(walk="independent")) is None
