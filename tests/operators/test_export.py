"""Events of exports."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from pbg_operators.export import ExportOperator
from pbg_operators.parts import ExportPartOperator
from pbg_operators.task import Refused, task_failure
from pbg_tasks.errors import QualityGateError

PLACE = Asset(name="g_production_npy", uri="file:///store/exports/npy")
DONE = {
    "destination": "/store/exports/npy/r",
    "exchange": "npy",
    "types": {"n": {"rows": 3, "dimension": 2}},
    "files": 4,
    "announced": False,
}


@pytest.fixture
def task():
    return export()


def export(published="true", asset=PLACE, channel="null"):
    return ExportOperator(
        task_id="npy",
        arguments=["/store/runs/r", "npy"],
        store_conn_id=None,
        asset=asset,
        export="export-npy",
        snapshot='"day-1"',
        published=published,
        channel=channel,
    )


def test_event_contains_location_of_export(fake_pbg, context, task):
    fake_pbg(
        f"assert sys.argv[1:4] == ['export-release', '/store/runs/r', 'npy']\nprint({json.dumps(json.dumps(DONE))})"
    )
    context["outlet_events"] = OutletEventAccessors()
    assert task.outlets == [PLACE]
    assert task.execute(context) == DONE
    event = context["outlet_events"][PLACE]
    assert event.extra == {
        "directory": "/store/exports/npy/r", "format": "npy", "types": DONE["types"], "snapshot": "day-1"
    }  # fmt: skip
    assert event.partition_keys == {"day-1"}


def test_failed_export_sends_no_event(fake_pbg, context, task):
    fake_pbg("sys.stderr.write('error: quality_gate: finds 0.3\\n'); sys.exit(8)")
    context["outlet_events"] = OutletEventAccessors()
    with pytest.raises(AirflowFailException, match=r"finds 0\.3"):
        task.execute(context)
    assert not context["outlet_events"][PLACE].extra


def test_export_below_its_floor_refuses_no_night(fake_pbg, context, task):
    fake_pbg("sys.stderr.write('error: quality_gate: finds 0.3\\n'); sys.exit(8)")
    with pytest.raises(AirflowFailException, match=r"finds 0\.3") as caught:
        task.execute(context)
    assert not isinstance(caught.value, Refused)
    assert not isinstance(task_failure("export-release", QualityGateError("in a pod")), Refused)
    assert context["ti"].pushed.keys() & {"refused", "error"} == {"error"}


def test_announced_export_sends_no_second_event(fake_pbg, context, task):
    fake_pbg(f"print({json.dumps(json.dumps(DONE | {'announced': True}))})")
    context["outlet_events"] = OutletEventAccessors()
    with pytest.raises(AirflowSkipException, match="export-npy of /store/runs/r was announced before"):
        task.execute(context)
    assert not context["outlet_events"][PLACE].extra


def test_run_that_is_not_served_is_not_exported(fake_pbg, context):
    fake_pbg("sys.exit('nobody asked for this')")
    with pytest.raises(AirflowSkipException, match="the channel does not serve this run"):
        export(published="false").execute(context)


@pytest.mark.parametrize("release", [None, {"published": False}, {"published": True}])
def test_store_knows_whether_run_is_served(fake_pbg, context, release):
    """After a ``publish`` that was marked as a success, Airflow does not."""
    fake_pbg(f"""
        shown = sys.argv[1:] == ["show", "/store/runs/r", "--json"]
        print(json.dumps({{"release": {release!r}}} if shown else {DONE!r}))
    """)
    context["outlet_events"] = OutletEventAccessors()
    given = {"command": "export-release", "arguments": ["/store/runs/r", "npy"], "store_conn_id": None}
    for task in (export(published="null"), ExportPartOperator(task_id="part", published="null", **given)):
        if release is not None and release["published"]:
            assert task.execute(context) == DONE
        else:
            with pytest.raises(AirflowSkipException, match="the channel does not serve this run"):
                task.execute(context)


@pytest.mark.parametrize(("channel", "skipped"), [("production", True), ("shadow", False)])
def test_changed_channel_gets_no_event_of_export(fake_pbg, context, channel, skipped):
    fake_pbg(f"print({json.dumps(json.dumps(DONE))})")
    shadow = Asset(name="g_shadow_npy", uri="file:///store/exports/npy?channel=shadow&export=npy&graph=g")
    context["outlet_events"] = OutletEventAccessors()
    task = export(asset=shadow, channel=json.dumps(channel))
    if skipped:
        with pytest.raises(AirflowSkipException, match=r"is of channel production, .* names channel shadow since"):
            task.execute(context)
        assert context["ti"].pushed["return_value"] == DONE
    else:
        assert task.execute(context) == DONE
    assert bool(context["outlet_events"][shadow].extra) is not skipped
