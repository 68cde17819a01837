"""Alerts: their occasions, their recipients, and late releases."""

from __future__ import annotations

import asyncio
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import yaml
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.alerts import Alert, check_notifiers, deadline, on_failure, report_late
from pbg_operators.deadline import PublishedBy
from pbg_operators.graphs import build_dags
from pbg_operators.plan import PlanOperator
from pbg_operators.publish import PublishOperator
from pbg_operators.reembed import build_dags_of
from pbg_operators.task import PbgOperator, Refused, RetryableError
from pbg_operators.train_job import PBGTrainJobOperator
from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError, QualityGateError, TrainingDivergedError
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from tests.operators.conftest import TaskInstance
from tests.operators.kubernetes.conftest import launch
from tests.operators.specs import small_spec, spec_file
from tests.publish.runs import candidate, write_run

FILE = "tests.stack.notifier.FileNotifier"


def spec_of(tmp_path, **nights):
    return parse(GraphSpec, {**small_spec(tmp_path, "g"), "nights": nights}, source="test")


def notifier(tmp_path, *occasions, **changes):
    arguments = {"path": str(tmp_path / "told"), "text": "{{ pbg.graph }}: {{ pbg.text }}"}
    return {"use": FILE, "on": occasions, "arguments": arguments, **changes}


def told(tmp_path):
    path = tmp_path / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def context():
    return {"dag": DAG("nightly_g", schedule=None), "run_id": "night-1"}


def test_notifier_gets_facts_of_its_occasions(tmp_path, context):
    spec = spec_of(tmp_path, notify=[notifier(tmp_path, "failed", "refused")])
    Alert(spec, "published")(context)
    assert told(tmp_path) == []
    Alert(spec, "failed")({**context, "reason": "task_failure"})
    Alert(spec, "refused")(context, "MRR 0.1")
    assert told(tmp_path) == [
        {"graph": "g", "occasion": "failed", "text": "nightly_g: night-1: task_failure",
         "rendered": "g: nightly_g: night-1: task_failure"},
        {"graph": "g", "occasion": "refused", "text": "MRR 0.1", "rendered": "g: MRR 0.1"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("occasions", "ended", "changes", "occasion"),
    [
        (("failed", "refused"), {"pulled": {"refused": "MRR 0.1"}}, {}, None),
        (("failed", "refused"), {"exception": Refused("MRR 0.1")}, {}, None),
        (("failed", "refused"), {"pulled": {"refused": "MRR 0.1", "unsent": True}}, {}, "failed"),
        (("failed", "refused"), {"pulled": {}}, {}, "failed"),
        (("failed", "refused"), {"exception": AirflowFailException("no store")}, {}, "failed"),
        (("failed",), {"pulled": {"refused": "MRR 0.1"}}, {}, "failed"),  # a notifier that has no other alert of it
        (("failed", "refused"), {"pulled": {"refused": "MRR 0.1"}}, {"refused": None}, "failed"),  # without that alert
        (
            ("failed", "refused"),
            {"pulled": {"refused": "MRR 0.1", "asked": True}},
            {},
            "failed",
        ),  # rejected by a person
    ],
)
def test_refusal_is_one_alert(tmp_path, context, occasions, ended, changes, occasion):
    spec = spec_of(tmp_path, notify=[notifier(tmp_path, *occasions)])
    task = SimpleNamespace(**{"refused": Alert(spec, "refused")} | changes)
    run = SimpleNamespace(task_id="gate", map_index=-1, xcom_pull=lambda key, **_: ended["pulled"].get(key))
    ended = {"reason": "task_failure"} | ended
    on_failure(spec)["on_failure_callback"]({**context, **ended, "task": task, "ti": run})
    assert [each["occasion"] for each in told(tmp_path)] == [occasion] * (occasion is not None)


def test_refusal_that_was_not_sent_is_marked(tmp_path, fake_pbg, context):
    fake_pbg("print('error: quality_gate: MRR 0.1', file=sys.stderr); sys.exit(8)")
    spec = spec_of(tmp_path, notify=[notifier(tmp_path, "refused", "failed", arguments={"colour": "red"})])
    task = PbgOperator(
        task_id="t", command="gate", arguments=["/s/runs/d1"], store_conn_id=None, refused=Alert(spec, "refused")
    )
    pushed = TaskInstance()
    with pytest.raises(Refused) as refused:
        task.execute({**context, "ti": pushed})
    assert refused.value.unsent
    assert pushed.pushed["unsent"] is True


def test_unreadable_xcom_leaves_failure_its_alert(tmp_path, context):
    def pull(**_):
        raise RuntimeError("no such message")

    spec = spec_of(tmp_path, notify=[notifier(tmp_path, "failed", "refused")])
    task = SimpleNamespace(refused=Alert(spec, "refused"))
    run = SimpleNamespace(task_id="gate", map_index=-1, xcom_pull=pull)
    Alert(spec, "failed")({**context, "task": task, "ti": run})
    assert [each["occasion"] for each in told(tmp_path)] == ["failed"]


@pytest.mark.parametrize(("key", "named"), [("2026-11-20", "2026-11-20 (night-1)"), (None, "night-1")])
def test_failed_run_is_named_with_its_snapshot(tmp_path, context, key, named):
    spec = spec_of(tmp_path, notify=[notifier(tmp_path, "failed")])
    Alert(spec, "failed")({**context, "reason": "task_failure", "dag_run": SimpleNamespace(partition_key=key)})
    assert told(tmp_path)[0]["text"] == f"nightly_g: {named}: task_failure"


def test_failing_notifier_does_not_stop_others(tmp_path, context):
    broken = [notifier(tmp_path, "failed", arguments={"colour": "red"}), notifier(tmp_path, "failed", use=f"{FILE}s")]
    Alert(spec_of(tmp_path, notify=[*broken, notifier(tmp_path, "failed")]), "failed")(context)
    assert len(told(tmp_path)) == 1


@pytest.fixture
def hook(monkeypatch):
    """Requests that a web hook got, at the connection ``alerts``."""
    got = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers["X-Token"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        connection = {"conn_type": "http", "host": f"http://127.0.0.1:{server.server_port}", "extra": {"X-Token": "t"}}
        monkeypatch.setenv("AIRFLOW_CONN_ALERTS", json.dumps(connection))
        Thread(target=server.serve_forever).start()
        yield got
        server.shutdown()


def test_web_hook_of_the_page_gets_alerts(tmp_path, context, hook):
    page = (Path(__file__).parents[2] / "docs" / "airflow-settings.md").read_text()
    (block,) = re.findall(r"```yaml\n(nights:\n  notify:.*?)```", page, re.DOTALL)
    spec = spec_of(tmp_path, **yaml.safe_load(block)["nights"])
    check_notifiers(spec, Path("g.yaml"))
    for occasion in ("refused", "warned", "published"):
        Alert(spec, occasion)(context, f'it was "{occasion}"')
    Alert(spec, "failed")({**context, "reason": "task_failure"})
    notifiers = [each.model_dump(mode="json") for each in spec.nights.notify]
    asyncio.run(report_late({"dag_run": {"dag_id": "nightly_g", "partition_key": "d1"}}, "g", "06:00", notifiers))
    assert hook == [
        ("/hook", "t", {"text": text})
        for text in (
            'it was "refused"',
            'it was "warned"',
            "nightly_g: night-1: task_failure",
            "nightly_g: d1 was not published by 06:00",
        )
    ]


def test_missing_notifier_is_found_in_advance(tmp_path):
    missing = spec_of(tmp_path, notify=[notifier(tmp_path, "failed", use="no_such_package.email.Notifier")])
    with pytest.raises(ConfigError, match=r"^g\.yaml: nights\.notify: module no_such_package\.email is not installed$"):
        check_notifiers(missing, Path("g.yaml"))
    check_notifiers(spec_of(tmp_path, notify=[notifier(tmp_path, "failed")]), Path("g.yaml"))


def test_failing_notifier_package_hides_no_graph(tmp_path, monkeypatch):
    (tmp_path / "too_new").mkdir()
    (tmp_path / "too_new" / "__init__.py").write_text("raise RuntimeError('too_new needs Apache Airflow 9.0+')")
    monkeypatch.syspath_prepend(tmp_path)
    failing = notifier(tmp_path, "failed", use="too_new.mail.Notifier")
    spec_file(tmp_path, tmp_path, "a")
    spec_file(tmp_path, tmp_path, "b", nights={"notify": [failing]})
    dags = {dag.dag_id: dag.description for dag in build_dags(tmp_path)}
    assert "reembed_a" in dags
    assert "nights.notify: module too_new.mail cannot be imported: RuntimeError('too_new needs" in dags["broken_b"]


NIGHT = (
    *(f"prepare.{task}" for task in ("plan", "validate", "partition", "bucket")),
    *(f"train.{task}" for task in ("train", "preserve")),
    *(f"release.{task}" for task in ("eval", "drift", "gate", "publish")),
)


@pytest.mark.parametrize("how", ["fail", "ask"])
def test_every_refusing_task_sends_an_alert(tmp_path, how, context):
    nights = {"notify": [notifier(tmp_path, "refused")]}
    dag = build_dags_of(spec_file(tmp_path, tmp_path, "g", gates={"on_failure": how}, nights=nights))[0]
    for name in NIGHT:
        dag.get_task(name).refused(context, name)
    assert [(each["occasion"], each["text"]) for each in told(tmp_path)] == [("refused", name) for name in NIGHT]


def test_judging_tasks_report_warnings(tmp_path, context):
    nights = {"notify": [notifier(tmp_path, "warned")]}
    for how in ("fail", "ask"):
        dag = build_dags_of(spec_file(tmp_path, tmp_path, "g", gates={"on_failure": how}, nights=nights))[0]
        assert {task.task_id for task in dag.tasks if getattr(task, "warned", None)} == {
            "prepare.validate", "prepare.partition", "release.gate"
        }  # fmt: skip
        dag.get_task("release.gate").warned(context, how)
    assert [(each["occasion"], each["text"]) for each in told(tmp_path)] == [("warned", "fail"), ("warned", "ask")]


CHECKS = [
    {"name": "volume", "passed": True, "warned": True, "sentence": "40 % of the edges"},
    {"name": "degrees", "passed": True, "warned": False, "sentence": "fine"},
]
FINDINGS = {
    "gate": {"run": "/s/runs/d1", "passed": True, "checks": CHECKS},
    "validate": {"run": "/s/runs/d1", "data_gate": {"passed": True, "checks": CHECKS}},
    "eval": {"run": "/s/runs/d1", "checks": CHECKS},
}


@pytest.mark.parametrize("command", FINDINGS)
def test_warnings_of_passed_gate_are_reported(fake_pbg, context, command):
    fake_pbg(f"print({json.dumps(json.dumps(FINDINGS[command]))})")
    said = []
    task = PbgOperator(
        task_id="t",
        command=command,
        arguments=["/s/runs/d1"],
        store_conn_id=None,
        warned=lambda _, text: said.append(text),
    )
    task.execute({**context, "ti": SimpleNamespace(dag_id="nightly_g", run_id="night-1", xcom_push=_ignore)})
    assert said == ([] if command == "eval" else ["run /s/runs/d1: 40 % of the edges"])


REFUSAL = "sys.stderr.write('error: quality_gate: the night is forecast to take 9 h\\n'); sys.exit({status})"
FORM = {**dict.fromkeys(("snapshot", "epochs", "dimension", "partitions", "engine", "accept_data")), "publish": "auto"}
REFUSING = {
    "plan": lambda **given: PlanOperator(spec="g.yaml", **given),
    "train": lambda **given: PBGTrainJobOperator(arguments=["/s/runs/d1"], **given),
    "eval": lambda **given: PbgOperator(command="eval", arguments=["/s/runs/d1"], **given),
    "publish": lambda **given: PublishOperator(arguments=["/s/runs/d1"], asset=Asset("g"), facts={}, **given),
}


@pytest.mark.parametrize("error", [QualityGateError, TrainingDivergedError])
@pytest.mark.parametrize("make", REFUSING.values(), ids=REFUSING)
def test_refusal_is_reported_once_by_any_task(fake_pbg, context, make, error):
    fake_pbg(REFUSAL.format(status=error.exit_code))
    said = []
    task = make(task_id="t", store_conn_id=None, refused=lambda _, text: said.append(text))
    context |= {
        "dag_run": SimpleNamespace(partition_key="d1", run_type="manual"),
        "params": FORM,
        "ti": TaskInstance(),
    }
    with pytest.raises(Refused):
        task.execute(context)
    (text,) = said
    assert "the night is forecast to take 9 h" in text
    assert context["ti"].pushed["refused"] == text


def test_task_that_breaks_has_no_refusal(fake_pbg, context):
    fake_pbg("sys.exit(3)")
    context["ti"] = TaskInstance()
    with pytest.raises(AirflowFailException):
        REFUSING["eval"](task_id="t", store_conn_id=None).execute(context)
    assert "refused" not in context["ti"].pushed


def test_divergence_on_cluster_is_reported_after_triggerer(context):
    said = []
    cluster = {"launcher": "kubernetes", "kubernetes": launch()}
    task = REFUSING["train"](task_id="t", store_conn_id=None, refused=lambda _, text: said.append(text), **cluster)
    context |= {"ti": SimpleNamespace(dag_id="nightly_g", run_id="night-1", xcom_push=_ignore)}
    with pytest.raises(Refused, match="the loss is no number"):
        task.execute_complete(context, {"kind": TrainingDivergedError.kind, "message": "the loss is no number"})
    assert len(said) == 1
    with pytest.raises(RetryableError):
        task.execute_complete(context, {"kind": "rank_lost", "message": "rank 1"})
    assert len(said) == 1


def _ignore(**_):
    pass


def test_late_release_is_reported(tmp_path):
    spec = spec_of(
        tmp_path, deadline={"at": "06:00"}, notify=[notifier(tmp_path, "late"), notifier(tmp_path, "failed")]
    )
    alert = deadline(spec)["deadline"]
    assert alert.reference.serialize_reference() == {"reference_type": "PublishedBy", "at": "06:00", "timezone": "UTC"}
    assert PublishedBy.deserialize_reference(alert.reference.serialize_reference()) == alert.reference
    run = {"dag_id": "nightly_g", "dag_run_id": "scheduled__1", "partition_key": "2026-11-20"}
    assert alert.callback.path == f"{report_late.__module__}.{report_late.__name__}"
    asyncio.run(report_late({"dag_run": run}, **json.loads(json.dumps(alert.callback.kwargs))))
    assert [each["text"] for each in told(tmp_path)] == ["nightly_g: 2026-11-20 was not published by 06:00"]


@pytest.mark.parametrize(
    ("run", "texts"),
    [
        ({"state": "success", "conf": {}}, 0),  # a user marked it so
        ({"state": "running", "conf": {"publish": "no"}}, 0),
        ({"state": "running", "conf": {"publish": "auto", "epochs": 9}}, 0),
        ({"state": "running", "conf": {"publish": "yes", "epochs": 9}}, 1),
        ({"state": "failed", "conf": None}, 1),
    ],
)
def test_only_unfinished_releases_are_late(tmp_path, run, texts):
    context = {"dag_run": {"dag_id": "nightly_g", "partition_key": "d1", **run}}
    asyncio.run(report_late(context, "g", "06:00", [notifier(tmp_path, "late")]))
    assert len(told(tmp_path)) == texts


@pytest.mark.parametrize(
    ("run", "texts"),
    [
        ({"state": "failed", "partition_key": "d1"}, 0),
        ({"state": "failed", "partition_key": None, "conf": {"snapshot": "d1"}}, 0),
        ({"state": "running", "partition_key": "d1"}, 1),
        ({"state": "failed", "partition_key": "d2"}, 1),
    ],
)
def test_failed_run_of_released_snapshot_is_not_late(tmp_path, run, texts):
    spec = spec_of(tmp_path, deadline={"at": "06:00"}, notify=[notifier(tmp_path, "late")])
    store = open_store(spec.store)
    write_run(store, "r1")
    Channel(store, spec.channel).publish(candidate(store, "r1", "d1"), planned_on=None)
    context = {"dag_run": {"dag_id": "nightly_g", "dag_run_id": "r", **run}}
    facts = json.loads(json.dumps(deadline(spec)["deadline"].callback.kwargs))
    asyncio.run(report_late(context, **facts))
    assert len(told(tmp_path)) == texts


def test_unreadable_releases_leave_night_late(tmp_path):
    spec = spec_of(tmp_path, deadline={"at": "06:00"}, notify=[notifier(tmp_path, "late")])
    open_store(spec.store).put_new(Channel(open_store(spec.store), spec.channel).release_key(1), b"no document")
    run = {"dag_id": "nightly_g", "dag_run_id": "r", "partition_key": "d1", "state": "failed"}
    asyncio.run(report_late({"dag_run": run}, **deadline(spec)["deadline"].callback.kwargs))
    assert len(told(tmp_path)) == 1


def test_hanging_hooks_leave_threads_to_others(monkeypatch):
    answers, called = Event(), []
    monkeypatch.setattr("pbg_operators.alerts.notify", lambda *_, **__: called.append(1) or answers.wait(60))

    async def all_at_once():
        context = {"dag_run": {"dag_id": "nightly_g", "partition_key": "d1"}}
        late = [asyncio.create_task(report_late(context, "g", "06:00", [])) for _ in range(40)]
        while len(called) < 5:  # noqa: ASYNC110 - threads add to them
            await asyncio.sleep(0.1)
        try:
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(lambda: "deleted") == "deleted"
        finally:
            answers.set()
        await asyncio.gather(*late)

    asyncio.run(all_at_once())
    assert len(called) == 40


def test_release_without_deadline_is_never_late(tmp_path):
    assert deadline(spec_of(tmp_path)) == {}
