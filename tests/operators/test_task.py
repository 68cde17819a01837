"""``PbgOperator`` with a real child process."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from structlog.testing import capture_logs

from examples.stack.processes import Identity
from pbg_operators.task import ERROR_KEY, KILL_GRACE_SECONDS, GraphOperator, PbgOperator, RetryableError
from pbg_tasks.errors import BY_EXIT_CODE, InputError
from pbg_tasks.storage.staging import Scratch
from tests.operators.connections import CONNECTION
from tests.waiting import wait_until

RUN = "s3://bucket/graphs/g/runs/day-0123456789ab"
SAY_WHAT_WAS_GIVEN = "print(json.dumps({'arguments': sys.argv[1:], 'environment': dict(os.environ)}))"


def operator(**kwargs):
    return PbgOperator(task_id="t", **{"command": "train", "arguments": [RUN], "store_conn_id": None, **kwargs})


def lines_of(logged):
    return [entry["event"] % entry.get("positional_args", ()) for entry in logged]


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: Identity.of(pid) is None, seconds=5)


def test_task_returns_last_line_of_stdout(fake_pbg, context):
    fake_pbg("print('chatter'); print(json.dumps({'loss': 0.5}))")
    assert operator().execute(context) == {"loss": 0.5}


def test_progress_lines_are_logged_while_command_runs(fake_pbg, context, tmp_path):
    fake_pbg(f"""
        print("epoch 1/2", file=sys.stderr, flush=True)
        while not os.path.exists({str(tmp_path / "seen")!r}): time.sleep(0.02)
        print("{{}}")
    """)
    task = operator()
    with capture_logs() as logged:
        thread = threading.Thread(target=task.execute, args=(context,))
        thread.start()
        wait_until(lambda: lines_of(logged)[-1:] == ["epoch 1/2"], seconds=20)
        (tmp_path / "seen").touch()
        thread.join()


def test_arguments_reach_the_command_unchanged(fake_pbg, context):
    fake_pbg(SAY_WHAT_WAS_GIVEN)
    strange = ["a b", "$(id)", "; exit 3", "--x=*"]
    assert operator(arguments=strange).execute(context)["arguments"] == ["train", *strange, "--json"]


@pytest.mark.parametrize(("status", "category"), BY_EXIT_CODE.items())
def test_category_of_error_decides_about_retry(fake_pbg, context, status, category):
    fake_pbg(f"""
        print("12:00:00 working", file=sys.stderr)
        print("error: {category.kind}: s3://b/k: row 7 is bad", file=sys.stderr)
        sys.exit({status})
    """)
    expected = RetryableError if category.retryable else AirflowFailException
    with pytest.raises(expected, match=f"^pbg eval ended with status {status}: {category.kind}: s3://b/k: row 7 is"):
        operator(command="eval").execute(context)


def test_crash_fails_at_once_with_last_line(fake_pbg, context):
    fake_pbg("raise KeyError('lost')")
    with pytest.raises(AirflowFailException, match="status 1: KeyError: 'lost'"):
        operator().execute(context)


def test_command_killed_from_outside_is_retried(fake_pbg, context):
    fake_pbg("os.kill(os.getpid(), 9)")
    with pytest.raises(RetryableError, match=r"SIGKILL.*memory ran out"):
        operator().execute(context)


@pytest.mark.parametrize("printed", ["", "done", "[1]", '{"half":'])
def test_success_without_json_object_is_failure(fake_pbg, context, printed):
    fake_pbg(f"print({printed!r})")
    with pytest.raises(AirflowFailException, match="no JSON object"):
        operator().execute(context)


def test_on_kill_ends_whole_group_in_time(fake_pbg, context, tmp_path):
    pids = tmp_path / "pids"
    fake_pbg(f"""
        import signal
        stubborn = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(flush=True); time.sleep(99)"
        child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
        child.stdout.readline()
        with open({str(pids)!r}, "w") as file: print(os.getpid(), child.pid, file=file)
        time.sleep(99)
    """)
    task = operator()
    raised = []

    def execute():
        try:
            task.execute(context)
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            raised.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), seconds=20)
    leader, child = map(int, pids.read_text().split())
    started = time.monotonic()
    task.on_kill()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert time.monotonic() - started < KILL_GRACE_SECONDS + 1
    wait_until_gone(leader)
    wait_until_gone(child)
    assert isinstance(raised[0], RetryableError)
    task.on_kill()  # again, after everything has ended


def test_processes_left_by_command_are_ended(fake_pbg, context):
    fake_pbg("""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
        print(json.dumps({"child": child.pid}))
    """)
    started = time.monotonic()
    result = operator().execute(context)
    assert time.monotonic() - started < 20
    wait_until_gone(result["child"])


def test_connection_becomes_environment_and_is_not_logged(fake_pbg, context, monkeypatch):
    fake_pbg(SAY_WHAT_WAS_GIVEN)
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(CONNECTION))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    with capture_logs() as logged:
        given = operator(store_conn_id="store").execute(context)["environment"]
    assert given["AWS_ACCESS_KEY_ID"] == "the-access-key"
    assert given["AWS_SECRET_ACCESS_KEY"] == CONNECTION["password"]
    assert given["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9"
    assert given["AWS_DEFAULT_REGION"] == given["AWS_REGION"] == "somewhere"
    assert "AWS_SESSION_TOKEN" not in given
    assert lines_of(logged)[-1] == f"pbg train {RUN} --json"
    assert CONNECTION["password"] not in str(logged)
    assert CONNECTION["password"] not in os.environ.values()


def test_environment_counts_without_the_connection(fake_pbg, context, monkeypatch):
    fake_pbg(SAY_WHAT_WAS_GIVEN)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-outside")
    assert operator(store_conn_id="pbg_s3").execute(context)["environment"]["AWS_ACCESS_KEY_ID"] == "from-outside"


def test_missing_connection_of_other_name_is_refused(context):
    """The worker's own credentials are not meant then.

    Airflow finds no connection either while it cannot look for it, so the task is tried again.
    """
    with pytest.raises(RetryableError, match="connection 'nowhere' does not exist: add it, or take it out of"):
        operator(store_conn_id="nowhere").execute(context)


def test_refused_access_without_connection_is_tried_again(fake_pbg, context, monkeypatch):
    fake_pbg("print('error: access: no usable S3 credentials', file=sys.stderr); sys.exit(9)")
    with pytest.raises(RetryableError, match="no usable S3 credentials; Airflow found no connection 'pbg_s3': add it"):
        operator(store_conn_id="pbg_s3").execute(context)
    with pytest.raises(AirflowFailException, match=r"credentials$"):
        operator(store_conn_id=None).execute(context)
    monkeypatch.setenv("AIRFLOW_CONN_PBG_S3", json.dumps(CONNECTION))
    with pytest.raises(AirflowFailException, match=r"credentials$"):
        operator(store_conn_id="pbg_s3").execute(context)


def test_other_error_without_connection_is_final(fake_pbg, context):
    fake_pbg(f"print('error: input: row 7 is bad', file=sys.stderr); sys.exit({InputError.exit_code})")
    with pytest.raises(AirflowFailException, match=r"bad$"):
        operator(store_conn_id="pbg_s3").execute(context)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"conn_type": "http"}, "type aws or pbg is needed"),
        ({"extra": {"role_arn": "arn:x"}}, "role_arn is not supported"),
    ],
)
def test_unusable_connection_is_refused(context, monkeypatch, change, sentence):
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(CONNECTION | change))
    with pytest.raises(AirflowFailException, match=sentence):
        operator(store_conn_id="store").execute(context)


def test_scratch_is_made_and_passed_on(fake_pbg, context, tmp_path):
    fake_pbg(SAY_WHAT_WAS_GIVEN)
    scratch = tmp_path / "deep" / "scratch"
    assert operator(scratch=str(scratch)).execute(context)["environment"]["PBG_SCRATCH"] == str(scratch)
    assert scratch.is_dir()


def test_leftover_on_worker_is_removed_before_command(fake_pbg, context, tmp_path, monkeypatch):
    fake_pbg("print(json.dumps({'left': os.listdir(os.environ['PBG_SCRATCH'])}))")
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "scratch"))
    left = tmp_path / "scratch" / "pbg-scratch-killed"
    with Scratch() as scratch, capture_logs() as logged:
        (left / "embeddings").mkdir(parents=True)
        assert operator(command="show").execute(context) == {"left": [scratch.path.name]}
    assert f"removed {left}, which a killed command left" in lines_of(logged)


def test_scratch_of_killed_command_is_removed_at_once(fake_pbg, context, scratch):
    fake_pbg("os.makedirs(os.environ['PBG_SCRATCH'] + '/pbg-scratch-x'); os.kill(os.getpid(), 9)")
    with pytest.raises(RetryableError, match="SIGKILL"):
        operator().execute(context)
    assert list(scratch.iterdir()) == []


def test_link_exists_when_the_command_fails(fake_pbg, context):
    fake_pbg("sys.exit(3)")
    task = operator()
    with pytest.raises(AirflowFailException):
        task.execute(context)
    (link,) = task.operator_extra_links
    assert context["ti"].pushed == {
        link.xcom_key: "/pbg/dags/reembed_toy/runs/manual__1#lineage",
        ERROR_KEY: "pbg train ended with status 3: it printed nothing",
    }
    assert link.get_link(task, ti_key=context["ti"]) == context["ti"].pushed[link.xcom_key]


def test_losing_training_is_skipped_other_conflicts_fail(fake_pbg, context):
    fake_pbg("print('error: conflict: another writer is alive and owns this run', file=sys.stderr); sys.exit(5)")
    with pytest.raises(AirflowSkipException, match=r"another run trains it: .* owns this run"):
        operator().execute(context)
    with pytest.raises(AirflowFailException, match="owns this run"):
        operator(command="publish").execute(context)


def test_command_on_graph_has_no_run_link(fake_pbg, context):
    fake_pbg("print(json.dumps({'arguments': sys.argv[1:]}))")
    task = GraphOperator(task_id="t", command="drill", arguments=["/graphs/g.yaml"], store_conn_id=None)
    assert task.execute(context) == {"arguments": ["drill", "/graphs/g.yaml", "--json"]}
    assert context["ti"].pushed == {}
