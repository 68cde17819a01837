"""The watch of a location: announcements, memory and recovery."""

from __future__ import annotations

import asyncio
import json
import os
from threading import Event
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

from pbg_operators.task import RetryableError
from pbg_operators.watch import SnapshotTrigger, WatchOperator, watermark_of
from pbg_tasks.config.nights import Watch
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.arrivals import Arrivals
from pbg_tasks.tasks.nightly.watermark import Watermark
from tests.publish.runs import candidate, write_run

LOCATION = "s3://b/edges/{snapshot}/*.parquet"
CHAIN = ["s3://b/store", "production"]
EDGES = Asset(name="g_edges", uri="s3://b/edges?graph=g")


def trigger(place, **changes):
    arguments = {
        "conn_id": None,
        "location": f"{place}/{{snapshot}}/*.tsv",
        "complete": "success",
        "quiet_seconds": 60.0,
        "every_seconds": 0.01,
        "watermark": {"begin": "0", "announced": []},
    }
    return SnapshotTrigger(**{**arguments, **changes})


def next_event(trigger, timeout=20.0):
    async def first():
        async with asyncio.timeout(timeout):
            return (await anext(trigger.run())).payload

    return asyncio.run(first())


def put(place, name):
    open_store(str(place)).put(name, b"")


def test_trigger_reports_whole_snapshots_in_order(tmp_path):
    for name in ("v10/a.tsv", "v10/_SUCCESS", "v9/a.tsv", "v9/_SUCCESS", "v11/a.tsv"):
        put(tmp_path, name)
    assert next_event(trigger(tmp_path)) == {"snapshots": ["v9", "v10"]}


def test_trigger_waits_for_a_snapshot(tmp_path):
    put(tmp_path, "d1/a.tsv")
    with pytest.raises(TimeoutError):
        next_event(trigger(tmp_path), timeout=0.3)
    put(tmp_path, "d1/_SUCCESS")
    assert next_event(trigger(tmp_path)) == {"snapshots": ["d1"]}


def test_trigger_reports_connection_of_other_type(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", '{"conn_type": "http", "host": "x"}')
    event = next_event(trigger(tmp_path, conn_id="shop"))
    assert event == {"error": "connection 'shop' is of type 'http'; type aws or pbg is needed"}
    assert "connection 'nowhere' does not exist: add it" in next_event(trigger(tmp_path, conn_id="nowhere"))["error"]


def test_trigger_of_chain_waits_for_earlier_snapshot(tmp_path):
    for name in ("d1/a.tsv", "d2/_SUCCESS"):
        put(tmp_path / "edges", name)
    held = trigger(tmp_path / "edges", chain=[f"{tmp_path}/store", "production"])
    with pytest.raises(TimeoutError):
        next_event(held, timeout=0.5)
    skip(Channel(open_store(f"{tmp_path}/store"), "production"), "d1", "it never came")
    assert next_event(held) == {"snapshots": ["d2"]}


def test_hanging_stores_leave_threads_to_others(tmp_path, monkeypatch):
    answers, looks = Event(), []
    monkeypatch.setattr(Arrivals, "look", lambda *_: looks.append(1) or (answers.wait(60) and ["d1"]))

    async def first():
        return (await anext(trigger(tmp_path).run())).payload

    async def all_at_once():
        watches = [asyncio.create_task(first()) for _ in range(40)]  # more than the event loop has threads
        while len(looks) < 5:  # noqa: ASYNC110 - threads add to them
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        try:
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(lambda: "deleted") == "deleted"
        finally:
            answers.set()
        return await asyncio.gather(*watches)

    assert asyncio.run(all_at_once()) == [{"snapshots": ["d1"]}] * 40


def test_another_triggerer_continues_a_lost_one(tmp_path):
    put(tmp_path, "d1/_SUCCESS")
    path, arguments = trigger(tmp_path, watermark=Watermark("0").passing(["d1"]).to_json()).serialize()
    assert path == "pbg_operators.watch.SnapshotTrigger"
    again = SnapshotTrigger(**arguments)
    put(tmp_path, "d2/_SUCCESS")
    assert next_event(again) == {"snapshots": ["d2"]}


def test_watch_without_memory_leaves_released_days_out(tmp_path):
    for day in ("d1", "d2", "d3"):
        put(tmp_path / "edges", f"{day}/_SUCCESS")
    channel = Channel(open_store(f"{tmp_path}/store"), "production")
    write_run(channel.store, "by-hand")
    channel.publish(candidate(channel.store, "by-hand", "d2"), planned_on=None)
    edges, chain = tmp_path / "edges", [f"{tmp_path}/store", "production"]
    event = next_event(trigger(edges, chain=chain, watermark=Watermark("d1").to_json()))
    assert event == {"snapshots": ["d3"], "passed": ["d1", "d2"]}
    task, context = watch({}, begin="d1")
    known = Watermark("d1").passing(task.execute_complete(context, event))
    assert context["outlet_events"][EDGES].partition_keys == {"d3"}
    for day in ("d0", "d1b"):
        put(edges, f"{day}/_SUCCESS")
    late = next_event(trigger(edges, chain=chain, watermark=known.to_json()))
    assert late == {"snapshots": ["d1b"]}


def test_watch_without_beginning_follows_newest_release(tmp_path):
    """Days that came before the new database are announced in turn."""
    for day in ("d1", "d2", "d3", "d4"):
        put(tmp_path / "edges", f"{day}/_SUCCESS")
    channel = Channel(open_store(f"{tmp_path}/store"), "production")
    write_run(channel.store, "by-hand")
    channel.publish(candidate(channel.store, "by-hand", "d2"), planned_on=None)
    event = next_event(trigger(tmp_path / "edges", chain=[f"{tmp_path}/store", "production"], watermark=None))
    assert event == {"snapshots": ["d3", "d4"], "passed": ["d2"]}


def test_day_of_killed_publication_is_announced(tmp_path, monkeypatch):
    """Its task, which would publish it, is lost with the database."""
    for day in ("d1", "d2"):
        put(tmp_path / "edges", f"{day}/_SUCCESS")
    channel = Channel(open_store(f"{tmp_path}/store"), "production")
    for run in ("whole", "killed"):
        write_run(channel.store, run)
    channel.publish(candidate(channel.store, "whole", "d1"), planned_on=None)

    def die(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(channel, "_point", die)
    with pytest.raises(KeyboardInterrupt):
        channel.publish(candidate(channel.store, "killed", "d2"), planned_on=1)
    chain = [f"{tmp_path}/store", "production"]
    event = next_event(trigger(tmp_path / "edges", chain=chain, watermark=Watermark("d1").to_json()))
    assert event == {"snapshots": ["d2"], "passed": ["d1"]}


def test_trigger_uses_keys_of_connection_only(s3_bucket, monkeypatch):
    put(s3_bucket, "d1/_SUCCESS")
    extra = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    keys = {"login": os.environ["AWS_ACCESS_KEY_ID"], "password": os.environ["AWS_SECRET_ACCESS_KEY"]}
    connection = {"conn_type": "aws", **keys, "extra": extra}
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("pbg_operators.connection.Connection.get", lambda _: as_connection(connection))
    assert next_event(trigger(s3_bucket, conn_id="team")) == {"snapshots": ["d1"]}
    assert "AWS_ACCESS_KEY_ID" not in os.environ


def as_connection(fields):
    from airflow.sdk import Connection

    return Connection(conn_id="team", **{**fields, "extra": json.dumps(fields["extra"])})


def test_refusing_store_is_reported_silent_one_retried(s3_bucket, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert next_event(trigger(s3_bucket))["error"].startswith("access: ")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TimeoutError):
        next_event(trigger(s3_bucket), timeout=2.0)


def watch(state, **changes):
    context = {"asset_state_store": SimpleNamespace(get=state.get), "outlet_events": OutletEventAccessors()}
    arguments = {"location": LOCATION, "watch": Watch(), "begin": None, "chain": CHAIN, "asset": EDGES, **changes}
    return WatchOperator(task_id="watch", store_conn_id=None, **arguments), context


def test_operator_defers_with_announced_snapshots():
    known = Watermark("d1").passing(["d1"]).to_json()
    task, context = watch({"watermark": known}, watch=Watch(complete="settled", quiet_minutes=2), begin="d0")
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    assert deferred.value.method_name == "execute_complete"
    _, arguments = deferred.value.trigger.serialize()
    assert arguments == {
        "conn_id": None,
        "location": LOCATION,
        "complete": "settled",
        "quiet_seconds": 120.0,
        "every_seconds": 60.0,
        "watermark": known,
        "chain": CHAIN,
        "table": None,
    }


@pytest.mark.parametrize(("chain", "announced"), [(CHAIN, {"d1"}), (None, {"d1", "d2"})])
def test_nights_of_chain_begin_one_by_one(chain, announced):
    task, context = watch({}, chain=chain)
    assert set(task.execute_complete(context, {"snapshots": ["d1", "d2"]})) == announced
    assert context["outlet_events"][EDGES].partition_keys == announced


def test_location_that_cannot_be_listed_is_retried():
    task, context = watch({})
    with pytest.raises(RetryableError, match="access: no"):
        task.execute_complete(context, {"error": "access: no"})
    assert not context["outlet_events"][EDGES].partition_keys


def test_watch_begins_at_its_watermark():
    assert watermark_of(None, None) is None
    assert watermark_of(None, "d3") == Watermark("d3")
    assert watermark_of({"begin": "d1", "announced": ["d2"]}, "d3") == Watermark("d1", frozenset({"d2"}))
