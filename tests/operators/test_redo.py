"""The DAG that repeats days of a chain."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from pbg_operators.form import OPENED
from pbg_operators.redo import RedoOperator
from pbg_operators.reembed import build_dags_of
from pbg_operators.task import REFUSED_KEY, Refused
from pbg_tasks.errors import ConfigError, QualityGateError
from tests.operators.specs import spec_file

CHANNEL = Asset(name="g_production", uri="file:///store/channels/production")
DONE = {
    "from": "d2",
    "days": ["d2", "d3"],
    "redone": [
        {"snapshot": "d2", "run": "/r2", "directory": "/r2/release", "release": 4},
        {"snapshot": "d3", "run": "/r3", "directory": "/r3/release", "release": 5},
    ],
}


@pytest.fixture
def redo(context):
    context["outlet_events"] = OutletEventAccessors()

    def execute(**form):
        context["params"] = {"from": "d2", "dry_run": False} | form
        return RedoOperator(task_id="redo", spec="/graph.yaml", asset=CHANNEL, store_conn_id=None).execute(context)

    return execute


def test_newest_release_of_the_days_is_an_event(redo, fake_pbg, context):
    fake_pbg(f"print(*sys.argv[1:], file=sys.stderr); print({json.dumps(json.dumps(DONE))})")
    assert redo() == DONE
    event = context["outlet_events"][CHANNEL]
    assert event.extra == {"release": 5, "snapshot": "d3", "directory": "/r3/release"}
    assert event.partition_keys == {"d3"}


def test_release_that_is_not_served_is_no_news(redo, fake_pbg, context):
    """A day's release from before a roll-back is not published again."""
    left = DONE | {"served": False}
    fake_pbg(f"print({json.dumps(json.dumps(left))})")
    with pytest.raises(AirflowSkipException, match=r"not serve release 5 of d3; `pbg releases /graph\.yaml`"):
        redo()
    assert context["ti"].pushed["return_value"] == left
    assert not context["outlet_events"][CHANNEL].extra


def test_dry_run_lists_days_and_is_no_news(redo, fake_pbg, context):
    listed = DONE | {"redone": []}
    fake_pbg(
        f"assert sys.argv[1:] == ['redo', '/graph.yaml', '--from=d2', '--dry-run', '--json'], sys.argv\n"
        f"print({json.dumps(json.dumps(listed))})"
    )
    with pytest.raises(AirflowSkipException, match="d2, d3"):
        redo(dry_run=True)
    assert context["ti"].pushed["return_value"] == listed
    assert not context["outlet_events"][CHANNEL].extra


def test_refused_day_ends_it_with_its_sentence(redo, fake_pbg, context):
    fake_pbg(
        f"sys.exit(print('error: quality_gate: d3 lost its edges', file=sys.stderr) or {QualityGateError.exit_code})"
    )
    with pytest.raises(Refused, match="d3 lost its edges"):
        redo()
    assert "d3 lost its edges" in context["ti"].pushed[REFUSED_KEY]


def test_form_without_a_day_is_refused(redo):
    with pytest.raises(AirflowFailException, match="fill in the corrected snapshot"):
        redo(**{"from": None})


@pytest.mark.parametrize("asked", [True, False])
def test_chain_has_the_dag_that_it_asks_for(tmp_path, asked):
    dags = {dag.dag_id: dag for dag in build_dags_of(spec_file(tmp_path, tmp_path, "g", nights={"redo": asked}))}
    assert ("redo_g" in dags) is asked
    if asked:
        assert set(dags["redo_g"].params) == {"from", "dry_run"}
        stored = DagSerialization.from_dict(DagSerialization.to_dict(dags["redo_g"]))
        assert {param.schema["section"] for param in map(stored.params.get_param, stored.params)} == {OPENED}
        with pytest.raises(ParamValidationError, match="param from"):
            stored.params.deep_merge({}).validate()
        assert stored.params.deep_merge({"from": "2026/11/20"}).validate()["from"] == "2026/11/20"


def test_redo_announces_what_rules_promote(tmp_path):
    rules = {"channel": "shadow", "promote": {"to": "production", "after_nights": 1}}
    path = spec_file(tmp_path, tmp_path, "g", nights={"redo": True}, **rules)
    (task,) = (dag.get_task("promote") for dag in build_dags_of(path) if dag.dag_id == "redo_g")
    assert task.upstream_task_ids == {"redo_from_a_day"}
    assert [asset.name for asset in task.outlets] == ["g_production"]


def test_independent_nights_have_nothing_to_repeat(tmp_path):
    with pytest.raises(ConfigError, match="redo has no meaning for walk independent"):
        build_dags_of(spec_file(tmp_path, tmp_path, "g", nights={"redo": True, "walk": "independent"}))
