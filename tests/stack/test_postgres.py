"""An Airflow of a team, with its database in PostgreSQL.

Nights begin when a snapshot arrives, and users decide on refusals.

The tests of this file are one story and run in the order they stand in. They take minutes of processor time, so they
run only where ``PBG_E2E_POSTGRES`` is set.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import yaml

from examples.stack.airflow import COMPONENTS
from examples.stack.processes import Service
from examples.stack.stack import Stack
from pbg_operators.link import address_of_run
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from tests.operators.specs import small_spec
from tests.stack import backfills, postgres
from tests.stack.conftest import edges

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(60 * 60),
    pytest.mark.skipif("PBG_E2E_POSTGRES" not in os.environ, reason="takes minutes; set PBG_E2E_POSTGRES to run it"),
    pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing())),
]

BUCKET = "team"
DAYS = [f"2026-11-{day}" for day in range(10, 13)]
STRICT, LENIENT, BLUNT = "strict", "lenient", "blunt"
"""Graphs of the same snapshots: the first asks at each night, the second never refuses, the third refuses all."""
GATE = "release.gate"
until = partial(backfills.until, minutes=40, pause=1.0)


def write_specs(directory, deadline="00:00"):
    nights = {
        "watch": {"complete": "success", "every_seconds": 1, "since": DAYS[0]},
        "calendar": {"cron": "0 2 * * *"},
        "deadline": {"at": deadline},
        "notify": [
            {
                "use": "tests.stack.notifier.FileNotifier",
                "on": ["failed", "refused", "published", "late"],
                "arguments": {"path": str(directory / "alerts.jsonl"), "text": "{{ pbg.graph }} {{ pbg.occasion }}"},
            }
        ],
        "collect": {},
    }
    for graph in (STRICT, LENIENT, BLUNT):
        spec = small_spec(f"s3://{BUCKET}", graph) | {"nights": nights}
        if graph != LENIENT:
            spec["gates"] |= {"min_mrr": 1.5}
        if graph == STRICT:
            spec["gates"] |= {"on_failure": "ask"}
        (directory / "graphs" / f"{graph}.yaml").write_text(yaml.safe_dump(spec))


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A running stack on PostgreSQL, with two graphs."""
    directory = tmp_path_factory.mktemp("team")
    (directory / "graphs").mkdir()
    write_specs(directory)
    with postgres.server() as database, pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join(str(each) for each in sys.path if each)  # the driver may be installed in any folder
        settings = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database, "PYTHONPATH": path}
        stack = Stack(directory, graphs=directory / "graphs", settings=settings)
        try:
            for name, value in stack.start_store(BUCKET).items():
                patch.setenv(name, value)
            for at, day in enumerate(DAYS):
                put(day, "edges.parquet", edges(range(4 * at, 100 + 4 * at)))
            stack.start_airflow(print)
            yield stack
        finally:
            stack.stop()


@pytest.fixture(scope="module")
def api(team):
    """Airflow's API with the DAGs of both graphs and unpaused watches."""
    api = team.airflow().api
    wanted = {f"{kind}_{graph}" for kind in ("watch", "reembed", "nightly") for graph in (STRICT, LENIENT)}
    until("the DAGs are read", lambda: wanted <= set(api.dag_ids()), api.import_errors)
    for graph in (STRICT, LENIENT):
        api.unpause(f"watch_{graph}")
    return api


def put(day, name, data=b""):
    open_store(f"s3://{BUCKET}").put(f"snapshots/{day}/{name}", data)


def runs_of(api, graph, day):
    return [run for run in api.runs(f"reembed_{graph}") if run["partition_key"] == day]


def state_of(api, graph, day):
    (run,) = runs_of(api, graph, day)
    return run["state"]


def begun(api, graph, day):
    """Wait for the run that a snapshot begins, and return its id."""
    return until(f"{graph} begins {day}", lambda: runs_of(api, graph, day))[0]["dag_run_id"]


def state_of_gate(api, run_id):
    return {task.task: task.state for task in api.tasks(f"reembed_{STRICT}", run_id)}.get(GATE)


def asked(api, run_id):
    """Wait for a question about a strict night; return its path."""

    until(
        "the gate asks",
        lambda: state_of_gate(api, run_id) == "awaiting_input",
        lambda: api.tasks(f"reembed_{STRICT}", run_id),
    )
    return f"dags/reembed_{STRICT}/dagRuns/{run_id}/taskInstances/{GATE}"


def answer(api, run_id, option, reason, ends_as):
    """Answer, and wait until the night has ended.

    Airflow loses an answer that comes before its scheduler has noticed the end of the worker that asked, which may take
    ten seconds: the task asks again then, and its user answers again.
    """
    said = {"chosen_options": [option], "params_input": {"reason": reason}}

    def ended():
        if state_of_gate(api, run_id) == "awaiting_input":
            api.patch(f"dags/reembed_{STRICT}/dagRuns/{run_id}/taskInstances/{GATE}/-1/hitlDetails", said)
        return api.get(f"dags/reembed_{STRICT}/dagRuns/{run_id}")["state"] == ends_as

    until(f"it ends as {ends_as}", ended, lambda: api.tasks(f"reembed_{STRICT}", run_id))


def alerts(team):
    path = team.directory / "alerts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def occasions(team, graph):
    return [each["occasion"] for each in alerts(team) if each["graph"] == graph]


def test_night_of_each_graph_begins_with_whole_snapshot(team, api):
    time.sleep(5)
    assert not [run for graph in (STRICT, LENIENT) for run in api.runs(f"reembed_{graph}")]
    put(DAYS[0], "_SUCCESS")
    run_id = begun(api, LENIENT, DAYS[0])
    begun(api, STRICT, DAYS[0])
    until(
        "it succeeds",
        lambda: state_of(api, LENIENT, DAYS[0]) == "success",
        lambda: api.tasks("reembed_lenient", run_id),
    )


def test_release_of_refused_night_records_its_approval(team, api):
    run_id = begun(api, STRICT, DAYS[0])
    task = asked(api, run_id)
    assert api.get(f"{task}/links")["extra_links"] == {"Run in store": address_of_run(f"reembed_{STRICT}", run_id)}
    question = api.get(f"{task}/-1/hitlDetails")
    assert "1.5 asked" in question["body"]
    answer(api, run_id, "Approve", "a first night", ends_as="success")
    release = Channel(open_store(f"s3://{BUCKET}/store/{STRICT}"), "production").current().release
    (decision,) = release.data["decisions"]
    assert (decision["task"], decision["approved"]) == ("gate", True)
    assert (decision["by"], decision["reason"]) == ("admin", "a first night")
    assert {"refused", "published"} <= set(occasions(team, STRICT))
    assert "published" in occasions(team, LENIENT)


def test_refusal_without_a_question_ends_the_night(team, api):
    dag = f"reembed_{BLUNT}"
    until("its DAG is read", lambda: dag in api.dag_ids(), api.import_errors)
    run_id = api.trigger(dag, partition_key=DAYS[0])
    until("it is refused", lambda: api.run_state(dag, run_id) == "failed", lambda: api.tasks(dag, run_id))
    until("its alert comes", lambda: occasions(team, BLUNT))


def test_killed_triggerer_loses_and_repeats_nothing(team, api):
    triggerer = Service("triggerer", team.directory)
    os.killpg(triggerer.identity().pid, signal.SIGKILL)
    put(DAYS[1], "_SUCCESS")
    triggerer.start([sys.executable, "-m", "airflow", *COMPONENTS["triggerer"]], team.airflow().environment())
    for graph in (STRICT, LENIENT):
        begun(api, graph, DAYS[1])
    until("it succeeds", lambda: state_of(api, LENIENT, DAYS[1]) == "success")
    assert [len(runs_of(api, graph, day)) for graph in (STRICT, LENIENT) for day in DAYS[:2]] == [1, 1, 1, 1]


def test_rejected_night_ends_as_refused(team, api):
    run_id = begun(api, STRICT, DAYS[1])
    asked(api, run_id)
    answer(api, run_id, "Reject", "too weak", ends_as="failed")
    release = Channel(open_store(f"s3://{BUCKET}/store/{STRICT}"), "production").current().release
    assert release.snapshot == DAYS[0]
    until("its failure is reported", lambda: "failed" in occasions(team, STRICT))
    assert occasions(team, BLUNT) == ["refused"]  # its failure, too, would have been reported by now


def test_night_waiting_past_its_deadline_is_reported(team, api):
    before = api.get(f"dags/reembed_{STRICT}/dagVersions")["total_entries"]
    write_specs(team.directory, f"{datetime.now(UTC) + timedelta(minutes=3):%H:%M}")
    until("it is read", lambda: api.get(f"dags/reembed_{STRICT}/dagVersions")["total_entries"] > before)
    put(DAYS[2], "_SUCCESS")
    asked(api, begun(api, STRICT, DAYS[2]))
    late = until("it is late", lambda: [each for each in alerts(team) if each["occasion"] == "late"])
    assert late[0]["rendered"] == f"{late[0]['graph']} late"


def test_backfill_of_two_days_succeeds(team, api):
    api.unpause(f"nightly_{LENIENT}")
    arguments = f"backfill create --dag-id nightly_{LENIENT} --from-date {DAYS[0]} --to-date {DAYS[1]}T23:59:59"
    command = [sys.executable, "-m", "airflow", *arguments.split(), "--max-active-runs", "2"]
    subprocess.run([*command, "--reprocess-behavior", "none"], env=team.airflow().environment(), check=True)

    def states():
        runs = [run for run in api.runs(f"nightly_{LENIENT}") if run["run_type"] == "backfill"]
        return {run["partition_key"]: run["state"] for run in runs}

    until("both days end", lambda: states() == dict.fromkeys(DAYS[:2], "success"), states)
