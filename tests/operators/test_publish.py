"""Who is told of a release, and when nobody is."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from operators.publish import PublishOperator

CHANNEL = Asset(name="g_production", uri="file:///store/channels/production")
PUBLISHED = {
    "published": True,
    "reason": "",
    "channel": "production",
    "release": 7,
    "directory": "/store/runs/r/release",
}


@pytest.fixture
def told():
    return []


@pytest.fixture
def publish(fake_pbg, context, told):
    context["outlet_events"] = OutletEventAccessors()

    def run(result):
        fake_pbg(f"print({json.dumps(json.dumps(result))})")
        facts = {"snapshot": '"day-1"', "mrr": "0.25", "edges": "1000"}
        task = PublishOperator(
            task_id="publish",
            arguments=["/store/runs/r"],
            store_conn_id=None,
            asset=CHANNEL,
            facts=facts,
            told=lambda _, text: told.append(text),
        )
        assert task.outlets == [CHANNEL]
        return task.execute(context)

    return run


def test_the_event_carries_release_and_figures(publish, context, told):
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


def test_a_channel_that_did_not_move_is_no_news(publish, context, told):
    result = {"published": False, "reason": "the run was planned not to be published"}
    with pytest.raises(AirflowSkipException, match="planned not to be published"):
        publish(result)
    assert context["ti"].pushed["return_value"] == result
    assert not context["outlet_events"][CHANNEL].extra
    assert told == []
