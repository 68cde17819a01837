"""Launcher jobset.

The JobSet, restarts of the gang by the cluster, and the class of its end.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from structlog.testing import capture_logs

from pbg_operators.kubernetes.jobset import jobset
from pbg_operators.kubernetes.submission import Handle
from pbg_operators.kubernetes.watch import Watch
from pbg_operators.task import RetryableError
from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.config.pods import CONTAINER
from pbg_tasks.errors import ConfigError
from tests.operators.kubernetes.conftest import JOB, launch, operator
from tests.operators.kubernetes.double import schema
from tests.operators.kubernetes.double.problems import RefusedError
from tests.operators.kubernetes.double.server import GROUPS
from tests.operators.kubernetes.gangs import EVERYTHING, TEMPLATES, gang, golden_jobset
from tests.operators.kubernetes.jobs import RANKS, RESULT, TRAIN, Try, logged_lines
from tests.operators.specs import small_spec
from tests.waiting import wait_until

COUNTED = (
    RANKS
    + """
    tries = os.path.join(os.path.dirname(__file__), f"rank-{rank}")
    before = len(open(tries).read()) if os.path.exists(tries) else 0
    open(tries, "a").write("x")
"""
)
"""Ranks that know how often they were started before."""
JOBSET = {"launcher": "jobset", "max_restarts": 2}


@pytest.fixture
def train(train):
    return lambda ranks=2, **changes: train(ranks, **JOBSET | changes)


# The object


def test_jobset_equals_the_readable_template():
    assert (TEMPLATES / "jobset.yaml").read_text() == golden_jobset(), (
        "run: python -m tests.operators.kubernetes.golden"
    )


@pytest.mark.parametrize("changes", [{}, EVERYTHING])
def test_schema_of_jobset_knows_every_field(changes):
    made = jobset(gang(servers=2, kind="JobSet", restarts=3, **changes), 1)
    schema.check(made)
    assert len(f"{made['metadata']['name']}-ranks-0-5") <= 63


@pytest.mark.parametrize("length", [1, 28, 40, 64])
def test_jobset_takes_a_snapshot_of_any_length(length):
    run = f"s3://bucket/graphs/g/runs/{'2' * length}-0123456789ab"
    schema.check(jobset(gang(ranks=12, run=run, kind="JobSet"), 10))


def test_labels_reach_the_job_within():
    made = jobset(gang(kind="JobSet", **EVERYTHING), 1)
    child = made["spec"]["replicatedJobs"][0]["template"]["metadata"]
    assert (child["labels"]["team"], child["labels"]["cost-centre"]) == ("graphs", "42")
    assert child["labels"]["app.kubernetes.io/name"] == "pbg-train"
    assert child["annotations"]["example.org/ticket"] == "G-1"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
    assert not [name for name in child["labels"] if name.startswith("kueue.x-k8s.io/")]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda spec: spec.update(suspnd=True), 'unknown field "spec.suspnd"'),
        (lambda spec: spec["failurePolicy"]["rules"][0].update(action="Retry"), "action: Unsupported value"),
        (lambda spec: spec["failurePolicy"]["rules"][0].update(name="for-good"), "name: Invalid value"),
        (lambda spec: spec["failurePolicy"].update(maxRestarts="3"), "maxRestarts: must be of type int"),
        (lambda spec: spec["replicatedJobs"][0].pop("template"), "template: Required value"),
        (lambda spec: spec["replicatedJobs"][0]["template"]["spec"].update(paralelism=1), "paralelism"),
    ],
)
def test_schema_would_find_a_mistake(spoil, sentence):
    wrong = jobset(gang(kind="JobSet"), 1)
    spoil(wrong["spec"])
    with pytest.raises(RefusedError, match=sentence):
        schema.check(wrong)


def test_spec_takes_the_launcher():
    section = {"launcher": "jobset", "kubernetes": {"image": "i", "allow_tag": True, "resources": {}}}
    document = small_spec("/srv", "g") | {"launch": section}
    with pytest.raises(ConfigError, match=r"launch.kubernetes: .*cpu is missing"):
        parse(GraphSpec, document, source="g.yaml")
    section["kubernetes"]["resources"] = {"cpu": "1", "memory": "1Gi"}
    with pytest.raises(ConfigError, match=r"launch\.launcher is jobset, yet pods cannot reach store"):
        parse(GraphSpec, document, source="g.yaml")
    assert parse(GraphSpec, document | {"store": "s3://b/g"}, source="g.yaml").launch.launcher == "jobset"
    with pytest.raises(ConfigError, match="launcher jobset needs the section kubernetes"):
        parse(GraphSpec, document | {"launch": {"launcher": "jobset"}}, source="g.yaml")


# The end


def test_cluster_restarts_the_gang_within_one_try(double, fake_pbg, train, context, tmp_path):
    documents = yaml.safe_load_all((TEMPLATES / "role.yaml").read_text())
    double.rules = next(document for document in documents if document["kind"] == "Role")["rules"]
    # A restart deletes pods with their logs, so the lost rank ends once its line was read.
    fake_pbg(
        COUNTED
        + """
    if not before and rank:
        print("error: rank_lost: rank 0", flush=True)
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "read")):
            time.sleep(0.05)
        sys.exit(12)
    print("trained", flush=True)
"""
    )
    lost = "[rank 1] error: rank_lost: rank 0"
    with capture_logs() as logged:
        task = Try(train)
        wait_until(lambda: lost in logged_lines(logged), 60)
        (tmp_path / "read").touch()
        assert task.end() == RESULT
    lines = logged_lines(logged)
    assert f"JobSet {JOB}-s1: the gang failed and is restarted, for the 1. time" in lines
    assert {"[rank 0] trained", "[rank 1] trained", lost} <= set(lines)
    (made,) = double.sets()
    assert (made["status"]["restarts"], made["status"]["terminalState"]) == (1, "Completed")
    assert context["task_state_store"].kept["gang"]["kind"] == "JobSet"
    assert train() == RESULT  # the JobSet that succeeded is found
    assert len(double.sets()) == 1


def test_mistake_ends_the_jobset_without_restart(double, fake_pbg, train):
    fake_pbg(COUNTED + "    if rank: end('error: config: lr is negative', 2)\n    ready_to_store(); time.sleep(60)")
    ended = train()
    assert isinstance(ended, AirflowFailException)
    assert str(ended) == f"config: Job {JOB}-s1-ranks-0: rank 1: lr is negative"
    (made,) = double.sets()
    assert made["status"]["restarts"] == 0


def test_failures_beyond_max_restarts_fail_the_try(double, fake_pbg, train):
    fake_pbg(COUNTED + "    end(f'error: storage: no answer, {before}', 6)")
    ended = train(ranks=1, max_restarts=1)
    assert isinstance(ended, RetryableError)
    assert str(ended) == f"storage: Job {JOB}-s1-ranks-0: rank 0: no answer, 1"  # the last gang's, not the first's
    assert isinstance(train(ranks=1, max_restarts=0), RetryableError)
    assert len(double.sets()) == 2  # the next try makes a JobSet of its own


@pytest.mark.parametrize("launchers", [("jobset", "kubernetes"), ("kubernetes", "jobset")])
def test_other_launcher_goes_on_after_failure(double, fake_pbg, train, launchers):
    """A failed workload and all its objects stay for a day."""
    fake_pbg(COUNTED + "    end('error: storage: no answer', 6)")
    first, then = ({"ranks": 1, "max_restarts": 0, "launcher": launcher} for launcher in launchers)
    assert isinstance(train(**first), RetryableError)
    fake_pbg(TRAIN)
    assert train(**then) == RESULT


def test_conflict_after_restart_skips_no_night(double, fake_pbg, train):
    """The gang before may still train, on a lost node."""
    fake_pbg(COUNTED + "    end('error: conflict: it is alive', 5) if before else end('error: storage: no answer', 6)")
    ended = train(ranks=1)
    assert isinstance(ended, RetryableError)
    assert str(ended).startswith(f"rank_lost: Job {JOB}-s1-ranks-0: rank 0: it is alive; it may be this gang before ")
    assert double.sets()[0]["status"]["restarts"] == 1


def test_conflict_beside_sidecar_skips_no_night(double, fake_pbg, train, monkeypatch):
    """A container that goes on keeps the Job from failing."""
    double.controller.injected = [{"name": "istio-proxy", "image": "proxy"}]
    monkeypatch.setattr("pbg_operators.kubernetes.stuck.OUTLIVED_SECONDS", 1.0)
    fake_pbg(COUNTED + "    if before: end('error: conflict: it is alive', 5)\n    ready_to_store(); time.sleep(60)")
    task = Try(train, ranks=1)
    double.printed(0, "training")
    double.lose_node(0)
    ended = task.end()
    assert isinstance(ended, RetryableError)
    assert str(ended).endswith("rank 0: it is alive; it may be this gang before its restart, on a node that is lost")


def test_killed_rank_restarts_the_gang(double, fake_pbg, train):
    fake_pbg(COUNTED + "    if not before: ready_to_store(); time.sleep(60)")
    task = Try(train)
    for rank in range(2):
        double.printed(rank, "training")
    double.starve(1)
    assert task.end() == RESULT
    assert double.sets()[0]["status"]["restarts"] == 1


def test_kueue_preempts_jobset_and_it_waits(double, fake_pbg, train):
    fake_pbg(TRAIN)
    task = Try(train, kubernetes=launch(kueue_queue="night"))
    (made,) = double.wait(double.sets)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
    assert not double.pods()
    double.resume(f"{JOB}-s1", plural="jobsets")
    for rank in range(2):
        double.printed(rank, "training")
    double.suspend(f"{JOB}-s1", plural="jobsets")
    double.wait(lambda: not double.pods())
    assert double.sets()[0]["status"]["restarts"] == 0
    fake_pbg(RANKS + "    print('trained', flush=True)")
    double.resume(f"{JOB}-s1", plural="jobsets")
    assert task.end() == RESULT
    assert double.sets()[0]["status"]["restarts"] == 0


def test_triggerer_follows_and_deletes_the_jobset(double, fake_pbg, context):
    fake_pbg(TRAIN)
    with pytest.raises(TaskDeferred) as caught:
        operator(2, deferrable=True, **JOBSET).execute(context)
    trigger = caught.value.trigger
    _, arguments = trigger.serialize()
    again = type(trigger)(**json.loads(json.dumps(arguments)))

    async def killed():
        running = asyncio.create_task(anext(again.run()))
        await asyncio.to_thread(double.printed, 0, "training")
        running.cancel()
        await again.on_kill()

    asyncio.run(killed())
    double.wait(lambda: not double.sets() and not double.jobs() and not double.pods())


class Successor:
    """Cluster whose JobSet has the name of a deleted one.

    A failed pod of that is still there.
    """

    now = datetime(2026, 1, 1, 1, tzinfo=UTC)

    def __init__(self):
        self.deleted = []

    def read(self, kind, name):
        made = jobset(gang(restarts=2, kind="JobSet"), 1)
        about = {"name": name, "uid": "new", "creationTimestamp": "2026-01-01T00:59:00Z"}
        return made | {"kind": kind, "metadata": about, "spec": made["spec"] | {"suspend": False}}

    def labelled(self, _labels):
        ended = {"exitCode": 2, "finishedAt": "2026-01-01T00:50:00Z"}
        status = {"phase": "Running", "containerStatuses": [{"name": CONTAINER, "state": {"terminated": ended}}]}
        about = {"name": "old", "uid": "old", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {}}
        return [{"metadata": about, "spec": {}, "status": status}]

    def log(self, _pod, _since):
        return iter(["2026-01-01T00:50:00Z a line of the deleted one"])

    def delete_job(self, name, *_):
        self.deleted.append(name)


def test_pods_of_deleted_jobset_are_ignored():
    cluster, said = Successor(), []
    watch = Watch(cluster, Handle("n", "new", 1, "JobSet"), startup_seconds=900, interval=1.0, say=said.append)
    assert watch.look() is None
    assert (cluster.deleted, said) == ([], [])


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (lambda node: node.unpullable.add(launch().image), "ImagePullBackOff: Back-off pulling"),
        (lambda node: setattr(node, "places", 1), "rank 1 got no node within 1 s"),
    ],
)
def test_pods_that_never_start_end_the_jobset(double, fake_pbg, train, trouble, sentence):
    fake_pbg(TRAIN)
    trouble(double.node)
    ended = train(kubernetes=launch(startup_seconds=1))
    assert f"JobSet {JOB}-s1: rank" in str(ended)
    assert sentence in str(ended)
    double.wait(lambda: not double.sets() and not double.pods())


def test_cluster_without_jobset_is_named(double, fake_pbg, train, monkeypatch):
    fake_pbg(TRAIN)
    monkeypatch.delitem(GROUPS, "jobset.x-k8s.io")
    ended = train()
    assert isinstance(ended, AirflowFailException)
    assert "install JobSet (https://jobset.sigs.k8s.io), or use launcher kubernetes" in str(ended)
