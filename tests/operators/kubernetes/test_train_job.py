"""``PBGTrainJobOperator`` with launcher kubernetes.

Real processes stand behind a double of the API.

Longer than other files: one operator distinguishes all the ends of a gang, with one set of stand-ins.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from base64 import b64decode
from pathlib import Path

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from structlog.testing import capture_logs

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.manifest import Gang
from pbg_operators.task import RetryableError
from pbg_operators.train_job import PBGTrainJobOperator
from pbg_tasks.errors import ConfigError, PbgError, ResourceError
from pbg_tasks.training.ranks.transport.certificates import VARIABLES
from tests.operators.connections import CONNECTION
from tests.operators.kubernetes.conftest import JOB, RUN, launch, operator
from tests.operators.kubernetes.jobs import QUICK, RANKS, RESULT, TRAIN, Try, logged_lines

REPOSITORY = Path(__file__).resolve().parents[3]


def test_four_ranks_return_result_from_the_store(double, fake_pbg, train, context):
    fake_pbg(RANKS + "    print(f'{rank} of {world}: {sys.argv[1:]}, {sorted(os.environ)}', flush=True)")
    with capture_logs() as logged:
        assert train() == RESULT
    lines = logged_lines(logged)
    for rank in range(4):
        (said,) = [line for line in lines if line.startswith(f"[rank {rank}]")]
        assert said.startswith(f"[rank {rank}] {rank} of 4: ['train', '{RUN}', '--json']")
        assert all(name in said for name in ("MASTER_ADDR", "MASTER_PORT", "PBG_RUN_TOKEN", "PBG_SCRATCH"))
    (job,) = double.jobs()
    assert context["task_state_store"].kept["gang"] == {"name": f"{JOB}-1", "uid": job["metadata"]["uid"], "attempt": 1}
    assert context["ti"].pushed  # the link to the run


def test_number_of_ranks_comes_from_template(double, fake_pbg, train):
    fake_pbg(QUICK)
    assert train(ranks="2", partition_servers=3) == RESULT
    assert len(double.pods()) == 5
    assert train(ranks="1", partition_servers=3, kubernetes=launch(namespace="other")) == RESULT
    assert len([pod for pod in double.pods() if pod["metadata"]["namespace"] == "other"]) == 1


def test_secrets_are_in_secret_objects_only(double, fake_pbg, train, monkeypatch):
    fake_pbg(RANKS + "    assert os.environ['AWS_SECRET_ACCESS_KEY'] == 'the-secret-key'; print('right', flush=True)")
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(CONNECTION))
    with capture_logs() as logged:
        assert train(ranks=2, store_conn_id="store") == RESULT
    (secret,) = double.objects.everything("secrets")
    values = {name: b64decode(value).decode() for name, value in secret["data"].items()}
    assert values["AWS_ACCESS_KEY_ID"] == "the-access-key"
    assert len(values["PBG_RUN_TOKEN"]) == 64
    others = [entry[3] for entry in double.objects.history if entry[2][0] != "secrets"]
    for place in (str(others), str(logged), str(double.requests)):
        assert not [name for name, value in values.items() if value in place and name != "AWS_REGION"]


MEETING = (
    RANKS
    + """
    import pathlib, time
    from pbg_tasks.training.ranks.transport.certificates import Certificates
    from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, connect

    token, place = os.environ["PBG_RUN_TOKEN"].encode(), pathlib.Path(os.environ["PLACE"])
    own = Credentials(token, "spec", rank, "trainer", Certificates.from_environment())
    answer = lambda connection: connection.send(connection.receive(timeout=20).kind)
    if rank == 0:
        with Listener(own, {"test": answer}, host="127.0.0.1") as listener:
            place.with_suffix(".new").write_text(str(listener.address[1]))
            place.with_suffix(".new").rename(place)
            while not place.with_suffix(".done").exists():
                time.sleep(0.05)
    else:
        while not place.exists():
            time.sleep(0.05)
        with connect(("127.0.0.1", int(place.read_text())), own, "test", timeout=20) as connection:
            print(connection.request("a", timeout=20).kind, own.certificates is not None, flush=True)
        place.with_suffix(".done").touch()
"""
)


@pytest.mark.parametrize("made", [True, False])
def test_pods_talk_with_certificates_of_their_gang(double, fake_pbg, train, tmp_path, made):
    fake_pbg(MEETING)
    with capture_logs() as logged:
        place = {"PLACE": str(tmp_path / "place")}
        assert train(ranks=2, kubernetes=launch(environment=place, certificates=made)) == RESULT
    assert f"[rank 1] a {made}" in logged_lines(logged)
    (secret,) = double.objects.everything("secrets")
    assert {name for name in secret["data"] if name.startswith("PBG_TLS")} == (
        set(VARIABLES.values()) if made else set()
    )


def test_objects_of_job_are_deleted_with_it(double, fake_pbg, train):
    fake_pbg(TRAIN)
    task = Try(train, ranks=2)
    double.printed(0, "training")
    uid = double.jobs()[0]["metadata"]["uid"]
    for plural in ("services", "secrets", "networkpolicies"):
        (thing,) = double.objects.everything(plural)
        assert [owner["uid"] for owner in thing["metadata"]["ownerReferences"]] == [uid]
    double.objects.remove("jobs", "default", f"{JOB}-1")
    assert "was deleted" in str(task.end())
    double.wait(lambda: not any(double.objects.everything(kind) for kind in ("secrets", "services", "pods")))


def test_task_needs_only_the_documented_role(double, fake_pbg, train):
    documents = yaml.safe_load_all((REPOSITORY / "docker" / "kubernetes" / "role.yaml").read_text())
    (role,) = [document for document in documents if document["kind"] == "Role"]
    double.rules = role["rules"]
    fake_pbg(QUICK)
    with capture_logs() as logged:
        assert train(ranks=2) == RESULT
    assert {"[rank 0] trained", "[rank 1] trained"} <= set(logged_lines(logged))
    double.rules = []
    refused = train(ranks=2)
    assert isinstance(refused, AirflowFailException)
    assert "access: " in str(refused)
    assert "docs/kubernetes.md" in str(refused)


# Once, however often


def test_try_after_lost_worker_finds_the_job(double, fake_pbg, train, context):
    fake_pbg(TRAIN)
    lost = Try(train, ranks=2)
    for index in range(2):
        double.printed(index, "training")
    context["task_state_store"].kept.clear()  # the worker was killed before it could record anything
    adopted = Try(train, ranks=2)
    double.wait(lambda: context["task_state_store"].kept)
    assert len(double.jobs()) == 1
    with double.objects.changed:  # before the Job ends one because of the other
        for index in range(2):
            double.disrupt(index, "EvictionByEvictionAPI")
    assert "evicted" in str(lost.end())
    assert "evicted" in str(adopted.end())


def test_job_without_secret_is_completed_by_next_try(double, fake_pbg, train):
    fake_pbg(QUICK)
    double.outage(403, 1, "/secrets")
    assert isinstance(train(), AirflowFailException)
    assert double.jobs()[0]["spec"]["suspend"] is True
    assert double.pods() == []
    assert train() == RESULT
    assert len(double.jobs()) == 1


def test_job_that_succeeded_unobserved_is_not_repeated(double, fake_pbg, train):
    fake_pbg(QUICK)
    assert train() == RESULT
    assert train() == RESULT
    assert len(double.jobs()) == 1


def test_next_try_of_failed_gang_is_new_job(double, fake_pbg, train, context):
    fake_pbg(RANKS + "    sys.exit(12)")
    assert isinstance(train(ranks=2), RetryableError)
    assert isinstance(train(ranks=2), RetryableError)
    fake_pbg(QUICK)
    assert train(ranks=2) == RESULT
    assert [job["metadata"]["name"] for job in double.jobs()] == [f"{JOB}-{attempt}" for attempt in (1, 2, 3)]
    context["task_state_store"].kept.clear()
    assert train(ranks=2) == RESULT  # found again by name, after the failed ones
    assert len(double.jobs()) == 3


def test_two_simultaneous_tries_make_one_job(double, fake_pbg, train):
    fake_pbg(RANKS + "    time.sleep(0.5)")
    assert [task.end() for task in [Try(train, ranks=2), Try(train, ranks=2)]] == [RESULT, RESULT]
    assert len(double.jobs()) == 1
    assert len(double.pods()) == 2


def test_job_of_another_task_is_left_alone(double, fake_pbg, train, context):
    fake_pbg(TRAIN)
    first = Try(train, ranks=2)
    double.printed(0, "training")
    context["task_state_store"].kept.clear()
    context["ti"].run_id = "manual__2"
    refused = train(ranks=2)
    assert isinstance(refused, AirflowSkipException)
    assert "another run trains it: " in str(refused)
    assert str(refused).endswith("for reembed_g/manual__1/train.train/-1")
    assert first.is_alive()
    double.objects.remove("jobs", "default", f"{JOB}-1")
    first.end()


@pytest.mark.usefixtures("double")
def test_gang_beside_another_of_its_run_is_skipped(fake_pbg, train):
    fake_pbg(RANKS + "    print('error: conflict: another gang trains here', file=sys.stderr); sys.exit(5)")
    ended = train(ranks=1)
    assert isinstance(ended, AirflowSkipException)
    assert str(ended).startswith("another run trains it: conflict: ")
    assert "rank 0: another gang trains here" in str(ended)


def test_job_of_another_training_is_not_adopted(double, fake_pbg, train, cluster):
    fake_pbg(QUICK)
    foreign = manifest.job(Gang("s3://elsewhere/runs/2026-11-20-0123456789ab", 2, 0, "me", launch(), ("true",)), 1)
    cluster.create(foreign)
    refused = train(ranks=2)
    assert isinstance(refused, AirflowFailException)
    assert f"Job {JOB}-1 in namespace default is not a training of {RUN}; delete it" in str(refused)


def test_job_with_other_uid_is_another_job(double, fake_pbg, train):
    fake_pbg(TRAIN)
    task = Try(train, ranks=2)
    double.printed(0, "training")
    with double.objects.changed:
        job = double.jobs()[0]
        double.objects.remove("jobs", "default", f"{JOB}-1")
        double.objects.create("jobs", "default", job)
    ended = task.end()
    assert isinstance(ended, RetryableError)
    assert job["metadata"]["uid"] in str(ended)
    assert len(double.jobs()) == 1  # the other Job stays


# Killed


def refused(task, context):
    with pytest.raises(RetryableError, match="was deleted"):
        task.execute(context)


def test_on_kill_deletes_job_after_ranks_store(double, fake_pbg, context):
    fake_pbg(TRAIN)
    task = operator(2)
    thread = threading.Thread(target=refused, args=(task, context))
    thread.start()
    double.printed(0, "training")
    double.printed(1, "training")
    names = [pod["metadata"]["name"] for pod in double.pods()]
    task.on_kill()
    thread.join(timeout=30)
    assert not thread.is_alive()
    double.wait(lambda: not double.pods())
    assert double.jobs() == []
    for name in names:
        assert double.node.logs[name][-1].endswith("error: evicted: told to end\n")
    task.on_kill()  # again, after it is gone


def test_on_kill_deletes_job_of_earlier_try(double, fake_pbg, train, context):
    fake_pbg(TRAIN)
    lost = Try(train, ranks=2)
    double.printed(0, "training")
    task = operator(2)
    thread = threading.Thread(target=refused, args=(task, context))
    thread.start()
    double.wait(lambda: task._killable)
    task.on_kill()
    assert "was deleted" in str(lost.end())
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_on_kill_leaves_new_job_of_same_name(double, fake_pbg, train, context):
    fake_pbg(QUICK)
    task = operator(2)
    task.execute(context)
    job = double.jobs()[0]
    double.objects.remove("jobs", "default", f"{JOB}-1")
    double.objects.create("jobs", "default", job)
    task.on_kill()
    assert len(double.jobs()) == 1


# Why it ended


@pytest.mark.parametrize(("status", "category"), [(2, ConfigError), (7, ResourceError), (70, PbgError)])
def test_category_of_ranks_error_decides(double, fake_pbg, train, status, category):
    fake_pbg(
        RANKS
        + f"""
    if rank == 1: end("12:00 working\\nerror: {category.kind}: s3://b/k: row 7 is bad", {status})
    ready_to_store(); time.sleep(60)"""
    )
    ended = train(ranks=2)
    assert isinstance(ended, RetryableError if category.retryable else AirflowFailException)
    assert str(ended).startswith(f"{category.kind}: Job {JOB}-1: rank 1")
    assert str(ended).endswith("s3://b/k: row 7 is bad")


PEERS = (
    RANKS
    + """
    ready_to_store()
    if rank == 0:  # takes a while to store, so that somebody sees why it ends
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), end("error: evicted: told to end", 13)))
    while rank == 0 or not os.path.exists(AFTERWARDS): time.sleep(0.01)
    end("error: rank_lost: rank 0 is gone", 12)"""
)


@pytest.mark.parametrize(
    ("happen", "kind", "sentence"),
    [
        (lambda double: double.starve(0), "resource", r"rank 0 ran out of memory \(limit 2Gi\)"),
        (lambda double: double.disrupt(0, "PreemptionByScheduler"), "evicted", "rank 0 was preempted"),
        (lambda double: double.disrupt(0, "EvictionByEvictionAPI"), "evicted", "rank 0 was evicted, as when its node"),
        (lambda double: double.disrupt(0, "DeletionByTaintManager"), "rank_lost", "rank 0 was deleted for a taint"),
        (
            lambda double: double.squeeze(0, "Usage of EmptyDir volume"),
            "resource",
            "rank 0 was evicted: Usage of Empty",
        ),
        (lambda double: double.kill(0, signal.SIGKILL), "resource", "rank 0: ended by SIGKILL"),
        (lambda double: double.lose_node(0), "(evicted|rank_lost)", "(on a node that is gone|DisruptionTarget)"),
    ],
)
def test_disruption_of_rank_precedes_errors_of_peers(double, fake_pbg, train, tmp_path, happen, kind, sentence):
    afterwards = tmp_path / "afterwards"
    fake_pbg(PEERS.replace("AFTERWARDS", repr(str(afterwards))))
    task = Try(train, ranks=3)
    for rank in range(3):
        double.running(rank)
    double.printed(0, "training")
    happen(double)
    afterwards.touch()
    ended = task.end()
    assert isinstance(ended, RetryableError)
    assert re.match(f"{kind}: Job {JOB}-1: .*{sentence}", str(ended)), ended


def test_gang_past_its_deadline_fails(double, fake_pbg, train):
    fake_pbg(TRAIN)
    ended = train(ranks=2, kubernetes=launch(deadline_seconds=1))
    assert isinstance(ended, RetryableError)
    assert f"Job {JOB}-1 ran longer than its deadline of 1 s" in str(ended)


@pytest.mark.parametrize(
    ("trouble", "expected", "sentence"),
    [
        (lambda node: node.unpullable.add(launch().image), AirflowFailException, "ImagePullBackOff: Back-off pulling"),
        (lambda node: setattr(node, "places", 1), RetryableError, "rank 1 got no node within 1 s: 0/1 nodes are avail"),
    ],
)
def test_pods_that_never_start_end_the_wait(double, fake_pbg, train, trouble, expected, sentence):
    fake_pbg(TRAIN)
    trouble(double.node)
    ended = train(ranks=2, kubernetes=launch(startup_seconds=1))
    assert isinstance(ended, expected)
    assert sentence in str(ended)
    double.wait(lambda: not double.jobs() and not double.pods())


def test_missing_secret_of_user_is_named(double, fake_pbg, train):
    fake_pbg(TRAIN)
    ended = train(ranks=1, kubernetes=launch(startup_seconds=1, secret="store-keys"))  # noqa: S106 (its name)
    assert isinstance(ended, AirflowFailException)
    assert 'CreateContainerConfigError: secrets "store-keys" not found' in str(ended)


# The API


@pytest.mark.parametrize("code", [500, 503, 429])
def test_api_failing_for_a_while_changes_nothing(double, fake_pbg, train, code):
    fake_pbg(RANKS + "    time.sleep(0.5)")
    task = Try(train, ranks=2)
    double.running(0)
    double.outage(code, 3)
    assert task.end() == RESULT


@pytest.mark.parametrize("code", [403, 500, 504])
def test_unreadable_logs_do_not_stop_training(double, fake_pbg, train, monkeypatch, code):
    monkeypatch.setattr("pbg_operators.kubernetes.watch.PATIENCE_SECONDS", 1.0)
    fake_pbg(RANKS + "    print('trained', flush=True); time.sleep(0.5)")
    double.outage(code, sys.maxsize, "/log")
    with capture_logs() as logged:
        assert train(ranks=2) == RESULT
    lines = logged_lines(logged)
    for rank in range(2):
        (said,) = [line for line in lines if line.startswith(f"the log of rank {rank} cannot be read: ")]
        assert f"({code})" in said
    assert not [line for line in lines if line.startswith("[rank")]


def test_api_failing_at_creation_is_retried(double, fake_pbg, train):
    fake_pbg(QUICK)
    double.outage(503, 1)
    assert isinstance(train(), RetryableError)
    assert train() == RESULT


def test_connection_that_leads_nowhere_is_refused(fake_pbg, train, monkeypatch):
    fake_pbg(QUICK)
    nowhere = {"conn_type": "kubernetes", "extra": {"kube_config_path": "/nowhere/config"}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(nowhere))
    ended = train()
    assert isinstance(ended, AirflowFailException)
    assert "config: connection 'kubernetes_default' leads to no cluster" in str(ended)


# Queues


def test_kueue_starts_gang_and_replaces_pods(double, fake_pbg, train):
    fake_pbg(TRAIN)
    with capture_logs() as logged:
        task = Try(train, ranks=2, kubernetes=launch(kueue_queue="night"))
        (job,) = double.wait(double.jobs)
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
        time.sleep(0.3)
        assert double.pods() == []
        double.resume(f"{JOB}-1")
        double.wait(lambda: "[rank 0] training" in logged_lines(logged))
        first = {pod["metadata"]["name"] for pod in double.pods()}
        double.suspend(f"{JOB}-1")
        double.wait(lambda: not double.pods())
        fake_pbg(RANKS + "    print('trained', flush=True); time.sleep(0.3)")
        double.resume(f"{JOB}-1")
        assert task.end() == RESULT
    assert not first & {pod["metadata"]["name"] for pod in double.pods()}
    assert {"[rank 0] training", "[rank 0] trained", "[rank 1] trained"} <= set(logged_lines(logged))


# Local


@pytest.mark.parametrize(
    ("ranks", "options"), [("1", []), (4, ["--ranks=4", "--max-restarts=3"]), ("2", ["--ranks=2", "--max-restarts=3"])]
)
def test_local_ranks_are_processes_of_the_command(fake_pbg, context, ranks, options):
    fake_pbg("print(json.dumps({'arguments': sys.argv[1:]}))")
    task = PBGTrainJobOperator(task_id="t", arguments=[RUN], ranks=ranks, max_restarts=3, store_conn_id=None)
    assert task.execute(context) == {"arguments": ["train", RUN, *options, "--json"]}


@pytest.mark.parametrize(("ranks", "size"), [("1", "1"), (1, "1"), (4, None)])
def test_local_rank_waits_for_no_other_machine(fake_pbg, context, monkeypatch, ranks, size):
    """The config's ``num_machines`` counts where no variable does."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    fake_pbg("import os; print(json.dumps({'size': os.environ.get('WORLD_SIZE')}))")
    task = PBGTrainJobOperator(task_id="t", arguments=[RUN], ranks=ranks, store_conn_id=None)
    assert task.execute(context) == {"size": size}
