"""From partition key and form to the arguments of ``pbg plan``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException

from operators.plan import PlanOperator, plan_arguments

UNTOUCHED = {"snapshot": None, "epochs": None, "dimension": None, "partitions": None, "engine": None, "publish": True}
SPEC = "/graphs/g.yaml"


@pytest.mark.parametrize(
    ("key", "form", "arguments"),
    [
        ("day-1", {}, ["--snapshot=day-1"]),
        (None, {"snapshot": "day-2"}, ["--snapshot=day-2"]),
        ("day-1", {"snapshot": "day-2"}, ["--snapshot=day-1"]),
        (
            None,
            {"snapshot": "d", "epochs": 1, "dimension": 8, "partitions": 4, "engine": "torch", "publish": False},
            ["--snapshot=d", "--epochs=1", "--dimension=8", "--partitions=4", "--engine=torch", "--no-publish"],
        ),
    ],
)
def test_what_is_filled_in_becomes_an_option(key, form, arguments):
    assert plan_arguments(SPEC, key, UNTOUCHED | form) == [SPEC, *arguments]


def test_a_run_without_snapshot_fails_with_one_sentence():
    with pytest.raises(AirflowFailException, match=r"^no snapshot: .* partition key, or fill in snapshot"):
        plan_arguments(SPEC, None, UNTOUCHED)


def test_the_link_leads_to_the_planned_run(fake_pbg, context):
    fake_pbg("print(json.dumps({'run': '/store/runs/day-1-abc', 'arguments': sys.argv[1:]}))")
    context |= {"params": UNTOUCHED, "dag_run": SimpleNamespace(partition_key="day-1")}
    task = PlanOperator(task_id="plan", spec=SPEC, store_conn_id=None)
    assert task.execute(context)["arguments"] == ["plan", SPEC, "--snapshot=day-1", "--json"]
    assert list(context["ti"].pushed.values()) == ["file:///store/runs/day-1-abc"]
