"""Tasks that promote releases, and their events."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from pbg_operators.form import OPENED
from pbg_operators.promote import PromoteOperator
from pbg_operators.reembed import build_dags_of
from tests.operators.specs import spec_file

READERS = Asset(name="g_production", uri="file:///store/channels/production")
PROMOTED = {
    "channel": "production",
    "promoted": True,
    "reason": "",
    "was": 1,
    "source": "shadow",
    "source_release": 3,
    "release": 2,
    "snapshot": "d3",
    "run": "/store/runs/r3",
    "directory": "/store/runs/r3/release",
    "announced": False,
}
FORM = {"release": None, "share": None, "stop": False, "other_space": False}


class _Run:
    triggering_user_name = "mia"


@pytest.fixture
def promote(fake_pbg, context):
    context["outlet_events"] = OutletEventAccessors()
    context["dag_run"] = _Run()

    def execute(result, *expected, form=None):
        fake_pbg(
            f"assert sys.argv[1:-1] == {['promote', '/graph.yaml', *expected]!r}, sys.argv\n"
            f"print({json.dumps(json.dumps(result))})"
        )
        context["params"] = FORM | (form or {})
        task = PromoteOperator(
            task_id="promote", spec="/graph.yaml", asset=READERS, by_form=form is not None, store_conn_id=None
        )
        return task, task.execute(context)

    return execute


def test_promoted_release_is_an_event_once(promote, fake_pbg, context, tmp_path):
    task, result = promote(PROMOTED, "--due")
    assert result == PROMOTED
    event = context["outlet_events"][READERS]
    assert event.extra == {"release": 2, "snapshot": "d3", "directory": "/store/runs/r3/release"}
    assert event.partition_keys == {"d3"}
    said = tmp_path / "said"
    fake_pbg(f"open({str(said)!r}, 'w').write(' '.join(sys.argv[1:])); print('{{}}')")
    task.remember()
    assert said.read_text() == "announced /store/runs/r3 promote --json"


def test_promoted_release_without_run_is_an_event(promote, fake_pbg, context):
    task, _ = promote(PROMOTED | {"run": None}, "--due")
    assert context["outlet_events"][READERS].partition_keys == {"d3"}
    fake_pbg("sys.exit('there is no run to mark')")
    task.remember()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"channel": "production", "promoted": False, "reason": "1 of 3 nights", "was": 1}, "1 of 3 nights"),
        (PROMOTED | {"announced": True}, "release 2 of channel production was announced before"),
        (PROMOTED | {"release": None, "share": 0.1, "announced": True}, "a share of the keys of channel production"),
    ],
)
def test_unmoved_channel_is_no_event(promote, context, result, reason):
    with pytest.raises(AirflowSkipException, match=reason):
        promote(result, "--due")
    assert context["ti"].pushed["return_value"] == result
    assert not context["outlet_events"][READERS].extra


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ({}, ["--by=mia"]),
        ({"release": 3, "other_space": True}, ["3", "--by=mia", "--other-space"]),
        ({"share": "10%"}, ["--by=mia", "--share=10%"]),
        ({"stop": True}, ["--stop", "--by=mia"]),
    ],
)
def test_form_becomes_options_of_command(promote, form, options):
    promote(PROMOTED, *options, form=form)


def test_form_that_contradicts_itself_is_refused(promote):
    with pytest.raises(AirflowFailException, match="asks to end a share, and for a release"):
        promote(PROMOTED, form={"stop": True, "share": "10%"})


@pytest.mark.parametrize("rules", [{}, {"after_nights": 3}, None], ids=["by hand", "by gate", "none"])
def test_dags_promote_as_spec_rules(tmp_path, rules):
    sections = {} if rules is None else {"channel": "shadow", "promote": {"to": "production", **rules}}
    spec = spec_file(tmp_path, tmp_path, "g", nights={"collect": {}}, **sections)
    dags = {dag.dag_id: dag for dag in build_dags_of(spec)}
    assert ("promote_g" in dags) is (rules is not None)
    assert dags["reembed_g"].has_task("promote") is bool(rules)
    channels = [each for each in dags["collect_g"].tasks[0].arguments if each.startswith("--channel")]
    if rules is None:
        assert channels == ["--channel=production"]
        return
    assert channels == ["--channel=shadow", "--channel=production"]
    (task,) = dags["promote_g"].tasks
    fields = dags["promote_g"].params
    opened = [name for name in fields if fields.get_param(name).schema["section"] == OPENED]
    assert opened == ["release", "share", "stop"] == [*fields][:3]
    assert fields.get_param("release").description == "Number in channel shadow. Empty: its current one."
    assert (set(fields), [asset.name for asset in task.outlets]) == (set(FORM), ["g_production"])
    assert [asset.name for asset in dags["reembed_g"].get_task("release.publish").outlets] == ["g_shadow"]
    if rules:
        promotion = dags["reembed_g"].get_task("promote")
        assert (promotion.upstream_task_ids, promotion.trigger_rule) == ({"release.publish"}, "none_failed")
    for dag in dags.values():
        DagSerialization.to_dict(dag)
