"""A gate that refuses a night.

The alert it sends, the question it asks, and the effect of the answer.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput

from pbg_operators import PbgTaskGroup, gate
from pbg_operators.alerts import _was_reported
from pbg_operators.gate import ApprovalGateOperator
from pbg_operators.task import PbgOperator, Refused, Unusable
from tests.operators.specs import spec_file

RUN = "/store/runs/d1-0123456789ab"
GATE = """
import os
calls = {calls!r}
with open(calls, "a") as file: print(json.dumps(sys.argv[1:]), file=file)
approved = any(json.loads(line)[0] == "approve" for line in open(calls))
if sys.argv[1] == "gate" and not approved:
    sys.exit("error: quality_gate: MRR 0.1, at least 0.2 asked")
print(json.dumps({{"command": sys.argv[1]}}))
"""


@pytest.fixture
def calls(fake_pbg, tmp_path):
    """Return the calls of a ``pbg`` whose gate passes once approved."""
    path = tmp_path / "calls"
    fake_pbg(
        GATE.replace("sys.exit(", "sys.stderr.write(")
        .format(calls=str(path))
        .replace('asked")', 'asked\\n"); sys.exit(8)')
    )
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def told():
    return []


@pytest.fixture
def asking(told, context, monkeypatch):
    questions, state = [], {}
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **detail: questions.append(detail)
    )
    context["ti"].id = "0"
    context["task_instance"] = context["ti"]
    context["task_state_store"] = SimpleNamespace(get=state.get, set=state.__setitem__)
    task = ApprovalGateOperator(
        task_id="gate",
        command="gate",
        arguments=[RUN],
        store_conn_id=None,
        refused=lambda _, text: told.append(text),
        snapshot="d1",
        hours=2,
    )
    return SimpleNamespace(task=task, questions=questions, context=context)


def answer(option, by="Ada", reason="a first night"):
    user = {"id": "1", "name": by}
    answered = {"responded_at": datetime.now(UTC), "responded_by_user": user, "params_input": {"reason": reason}}
    return {"chosen_options": [option], **answered}


def test_refusal_is_reported_and_fails_at_once(calls, context, told):
    task = PbgOperator(
        task_id="gate", command="gate", arguments=[RUN], store_conn_id=None, refused=lambda _, text: told.append(text)
    )
    with pytest.raises(Refused, match=r"at least 0\.2 asked"):
        task.execute(context)
    assert len(told) == 1
    assert "at least 0.2 asked" in told[0]


def test_question_has_reasons_and_link_to_run(calls, asking, told):
    with pytest.raises(TaskAwaitingInput) as waits:
        asking.task.execute(asking.context)
    assert waits.value.timeout.total_seconds() == 7200
    (question,) = asking.questions
    assert question["options"] == ["Approve", "Reject"]
    assert "at least 0.2 asked" in question["body"]
    assert list(question["params"]) == ["reason"]
    assert len(told) == 1
    assert asking.context["ti"].pushed  # the link
    assert not _was_reported(asking.context | {"task": asking.task})  # what ends the night later is another occasion


def test_question_names_the_planned_snapshot(tmp_path, context):
    """The partition key is another where the DAG names the snapshot."""
    spec = spec_file(tmp_path, tmp_path, "g", gates={"on_failure": "ask"})
    with DAG("shop", schedule=None) as dag:
        PbgTaskGroup(spec, snapshot="{{ ds }}", group_id="night")
    task, results = dag.get_task("night.release.gate"), {"night.prepare.plan": {"run": RUN, "snapshot": "2026-11-20"}}
    context["ti"].xcom_pull = lambda task_ids: results[task_ids]
    task.render_template_fields(context | {"dag": dag, "dag_run": SimpleNamespace(partition_key="d9")})
    assert task.subject == "shop: gate refused 2026-11-20"


def test_second_run_gets_no_earlier_question(calls, asking, told):
    """Airflow keeps the first question of a task that is cleared."""
    for _ in range(2):  # of one run
        with pytest.raises(TaskAwaitingInput):
            asking.task.execute(asking.context)
    asking.task.arguments = ["/store/runs/d1-ba9876543210"]
    with pytest.raises(Refused, match=rf"0\.2 asked; not asked in Airflow.* about run {RUN} .* another DAG run"):
        asking.task.execute(asking.context)
    assert len(asking.questions) == 2
    assert len(told) == 3


def test_unusable_night_is_not_asked_about(fake_pbg, asking, told):
    fake_pbg("sys.exit(sys.stderr.write('error: unusable: the snapshot has no edges\\n') and 15)")
    with pytest.raises(Unusable, match="the snapshot has no edges"):
        asking.task.execute(asking.context)
    assert asking.questions == []
    assert len(told) == 1
    assert _was_reported(asking.context | {"task": asking.task})


def test_approval_is_stored_and_gate_passes(calls, asking):
    result = asking.task.execute_complete(asking.context, answer("Approve"))
    assert result == {"command": "gate"}
    assert calls() == [
        ["approve", RUN, "--by=Ada", "--reason=a first night", "--json"],
        ["gate", RUN, "--json"],
    ]


def test_rejection_is_stored_and_ends_the_night(calls, asking):
    with pytest.raises(AirflowFailException, match="rejected by Ada: too weak"):
        asking.task.execute_complete(asking.context, answer("Reject", reason="too weak"))
    assert calls() == [["reject", RUN, "--by=Ada", "--reason=too weak", "--json"]]


@pytest.mark.parametrize(
    ("given", "stored"),
    [("", "Ada gave no reason"), (None, "Ada gave no reason"), (["ok", 1], "['ok', 1]"), ("x" * 501, "x" * 500)],
)
def test_reason_of_any_type_is_stored(calls, asking, given, stored):
    asking.task.execute_complete(asking.context, answer("Approve", reason=given))
    assert calls()[0][-2] == f"--reason={stored}"


def test_answer_waits_for_store_that_fails(fake_pbg, asking, monkeypatch, tmp_path):
    monkeypatch.setattr(gate, "PAUSES", (0.0, 0.0))
    calls = tmp_path / "calls"
    fake_pbg(f"""
        print(sys.argv[1], file=open({str(calls)!r}, "a"))
        if len(open({str(calls)!r}).readlines()) < 3:
            sys.stderr.write("error: storage: 503\\n")
            sys.exit(6)
        print(json.dumps({{"command": sys.argv[1]}}))
    """)
    assert asking.task.execute_complete(asking.context, answer("Approve")) == {"command": "gate"}
    assert calls.read_text().split() == ["approve", "approve", "approve", "gate"]


TOO_LATE = {"error": "too late", "error_type": "timeout"}


def test_night_ends_undecided_without_timely_answer(calls, asking, told):
    with pytest.raises(AirflowFailException, match="not approved in time"):
        asking.task.execute_complete(asking.context, TOO_LATE)
    assert calls() == [["gate", RUN, "--json"]]
    assert told == []  # the alert was sent with the question


def test_approval_from_elsewhere_counts_after_the_time(calls, asking, tmp_path):
    (tmp_path / "calls").write_text(json.dumps(["approve", RUN]) + "\n")
    assert asking.task.execute_complete(asking.context, TOO_LATE) == {"command": "gate"}


def test_hostile_name_in_question_is_no_markdown(fake_pbg, asking):
    fake_pbg("sys.exit(sys.stderr.write('error: quality_gate: ![x](https://x.example/p) <b>_r_</b>\\n') and 8)")
    with pytest.raises(TaskAwaitingInput):
        asking.task.execute(asking.context)
    assert r"\!\[x\](https://x.example/p) \<b\>\_r\_\</b\>" in asking.questions[0]["body"]


def test_passing_gate_asks_no_question(fake_pbg, asking, told):
    fake_pbg("print('{}')")
    assert asking.task.execute(asking.context) == {}
    assert told == asking.questions == []
