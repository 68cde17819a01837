"""Events of releases, and outcomes that cause none."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from pbg_operators.announcing import remember
from pbg_operators.publish import FinishOperator, PublishOperator

CHANNEL = Asset(name="g_production", uri="file:///store/channels/production")
PUBLISHED = {
    "published": True,
    "reason": "",
    "channel": "production",
    "release": 7,
    "directory": "/store/runs/r/release",
    "announced": False,
}


@pytest.fixture
def told():
    return []


@pytest.fixture
def publish(operator, context):
    context["outlet_events"] = OutletEventAccessors()
    return lambda result: operator(result).execute(context)


@pytest.fixture
def operator(fake_pbg, told):

    def make(result):
        fake_pbg(f"print({json.dumps(json.dumps(result))})")
        facts = {"snapshot": '"day-1"', "mrr": "0.25", "edges": "1000"}
        task = PublishOperator(
            task_id="publish",
            arguments=["/store/runs/r"],
            store_conn_id=None,
            asset=CHANNEL,
            facts=facts,
            alert=lambda _, text: told.append(text),
        )
        assert task.outlets == [CHANNEL]
        return task

    return make


def test_event_contains_release_and_figures(publish, context, told):
    assert publish(PUBLISHED) == PUBLISHED
    event = context["outlet_events"][CHANNEL]
    assert event.extra == {
        "release": 7,
        "directory": "/store/runs/r/release",
        "snapshot": "day-1",
        "mrr": 0.25,
        "edges": 1000,
    }
    assert event.partition_keys == {"day-1"}
    assert told == ["channel production serves release 7 of snapshot day-1"]


def test_unmoved_channel_sends_no_event(publish, context, told):
    result = {"published": False, "reason": "the run was planned not to be published"}
    with pytest.raises(AirflowSkipException, match="planned not to be published"):
        publish(result)
    assert context["ti"].pushed["return_value"] == result
    assert not context["outlet_events"][CHANNEL].extra
    assert told == []


def test_channel_of_changed_spec_gets_no_event(publish, context, told):
    result = {**PUBLISHED, "channel": "shadow"}
    with pytest.raises(AirflowSkipException, match="release 7 is in channel shadow, as the run was planned"):
        publish(result)
    assert context["ti"].pushed["return_value"] == result
    assert not context["outlet_events"][CHANNEL].extra
    assert told == []


def test_announced_release_sends_no_second_event(publish, context, told):
    result = {**PUBLISHED, "announced": True}
    with pytest.raises(AirflowSkipException, match="publish of /store/runs/r was announced before"):
        publish(result)
    assert context["ti"].pushed["return_value"] == result
    assert not context["outlet_events"][CHANNEL].extra
    assert told == []


def test_announcement_is_recorded_after_airflow_sent_it(operator, fake_pbg, context, tmp_path):
    calls = tmp_path / "calls"
    task = operator(PUBLISHED)
    context["outlet_events"] = OutletEventAccessors()
    fake_pbg(f"""
        print(*sys.argv[1:], file=open({str(calls)!r}, "a"))
        print({json.dumps(json.dumps(PUBLISHED))})
    """)
    task.execute(context)
    assert calls.read_text().splitlines() == ["publish /store/runs/r --json"]
    (told_of,) = task.on_success_callback
    told_of(context | {"task": task})
    assert calls.read_text().splitlines()[1:] == ["announced /store/runs/r publish --json"]


@pytest.mark.parametrize("stored", ["running", "up_for_retry", "restarting"])
def test_event_that_airflow_lacks_is_not_recorded(operator, fake_pbg, context, stored):
    task = operator(PUBLISHED)
    context["outlet_events"] = OutletEventAccessors()
    task.execute(context)
    fake_pbg("sys.exit('the announcement was recorded')")
    context["ti"].state = stored
    (told_of,) = task.on_success_callback
    told_of(context | {"task": task})


@pytest.mark.parametrize("given", [print, [print], {print}])
def test_callback_of_default_args_is_kept(given):
    with DAG("d", schedule=None, default_args={"on_success_callback": given}):
        task = PublishOperator(task_id="publish", arguments=["r"], store_conn_id=None, asset=CHANNEL, facts={})
    assert task.on_success_callback == [remember, print]


@pytest.fixture
def finish(fake_pbg, context, told):
    """Run ``pbg finish`` with a result; it returns the warnings."""
    context["outlet_events"] = OutletEventAccessors()
    warned = []

    def run(result):
        fake_pbg(f"print({json.dumps(json.dumps(result))})")
        task = FinishOperator(
            task_id="finish",
            arguments=["/store/runs/r"],
            store_conn_id=None,
            graph="g",
            asset=CHANNEL,
            facts={"snapshot": '"day-1"', "edges": "1000"},
            alert=lambda _, text: told.append(text),
            warned=lambda _, text: warned.append(text),
        )
        task.execute(context)
        return warned

    return run


def test_finish_reports_all_that_it_did(finish, context, told):
    checks = [
        {"name": name, "passed": True, "warned": warned, "value": 1, "limit": 1, "sentence": sentence}
        for name, warned, sentence in (("fall", True, "MRR fell"), ("floor", False, "fine"))
    ]
    tasks = {"eval": {"filtered": {"mrr": 0.25}}, "gate": {"passed": True, "checks": checks}, "publish": PUBLISHED}
    warned = finish({**PUBLISHED, "run": "/store/runs/r", "task": "finish", "tasks": tasks})
    extra = context["outlet_events"][CHANNEL].extra
    assert (extra["release"], extra["mrr"], extra["edges"]) == (7, 0.25, 1000)
    assert warned == ["run /store/runs/r: MRR fell"]
    assert told == ["channel production serves release 7 of snapshot day-1"]
