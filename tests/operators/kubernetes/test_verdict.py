"""Reasons of a gang's end, from the cluster's statements.

These are the cases that take no process to show.
"""

from __future__ import annotations

import pytest

from pbg_operators.kubernetes.trigger import error_of, event_of
from pbg_operators.kubernetes.verdict import failure, section_of
from pbg_tasks.errors import BY_EXIT_CODE, ConfigError, EvictedError, PbgError, RankLostError, ResourceError

POD = {"metadata": {"name": "j-0-x", "creationTimestamp": "2026-11-20T00:00:00Z"}, "spec": {"containers": [{}]}}


def job(reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit"):
    failed = {"type": "Failed", "status": "True", "reason": reason, "message": message}
    return {"metadata": {"name": "j"}, "spec": {}, "status": {"conditions": [failed]}}


def pod(rank, status, *, at=0, message="", reason="Error", **more):
    ended = {"exitCode": status, "finishedAt": f"2026-11-20T00:00:{at:02d}Z", "message": message, "reason": reason}
    return POD | {
        "metadata": POD["metadata"] | {"labels": {"batch.kubernetes.io/job-completion-index": str(rank)}},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "train", "state": {"terminated": ended}}], **more},
    }


@pytest.mark.parametrize(("status", "category"), BY_EXIT_CODE.items())
def test_own_exit_status_gives_category_and_line(status, category):
    said = f"12:00:00 working\nerror: {category.kind}: s3://b/k: row 7 is bad\nTraceback of nobody's interest\n"
    found = failure(job(), [pod(0, 0), pod(1, status, message=said)])
    assert type(found) is category
    assert str(found).startswith("Job j: rank 1")
    assert "s3://b/k: row 7 is bad" in str(found)


@pytest.mark.parametrize(
    ("status", "category", "said"),
    [
        (1, PbgError, "crashed with status 1: KeyError: 'lost'"),
        (137, ResourceError, "ended by SIGKILL: KeyError: 'lost'"),
        (139, ResourceError, "ended by SIGSEGV"),
        (143, EvictedError, "ended by SIGTERM"),
        (127, ConfigError, "the image cannot run `pbg`: KeyError: 'lost'"),
        (253, ResourceError, "ended by signal 125"),
    ],
)
def test_foreign_exit_status_is_a_crash(status, category, said):
    found = failure(job(), [pod(3, status, message="KeyError: 'lost'")])
    assert type(found) is category
    assert f"rank 3: {said}" in str(found)


@pytest.mark.parametrize("status", [2, 3, 5, 7, 70, 1, 137])
def test_rank_reporting_lost_peer_is_never_cause(status):
    pods = [pod(0, 12, at=0, message="error: rank_lost: rank 1"), pod(1, status, at=9), pod(2, 13), pod(3, 143)]
    assert "rank 1" in str(failure(job(), pods)).partition(": ")[2]


def test_first_of_two_equal_errors_is_cause():
    assert "rank 1" in str(failure(job(), [pod(0, 6, at=5), pod(1, 6, at=4)]))


def test_memory_shortage_precedes_its_crash():
    assert "rank 1 ran out of memory" in str(failure(job(), [pod(0, 1), pod(1, 137, at=9, reason="OOMKilled")]))


@pytest.mark.parametrize(
    ("task", "arguments", "section"),
    [
        ("train", [], "launch.kubernetes"),
        ("eval_part", ["--part=1/2"], "launch.tasks.eval_part"),
        ("export-npy", ["--parts=2"], "launch.tasks.export"),
        ("export-npy-part", ["--part=1/2"], "launch.tasks.export_part"),
        ("export-my-part", [], "launch.tasks.export"),
    ],
)
def test_section_is_that_of_the_task(task, arguments, section):
    command = {"name": "train", "command": ["pbg", task, "run", *arguments]}
    labels = {"app.kubernetes.io/component": task}
    assert section_of({"metadata": {"labels": labels}, "spec": {"containers": [command]}}) == section


def test_shut_down_node_is_a_lost_rank():
    found = failure(job(), [pod(0, 0, reason="Completed"), pod(1, 143) | {"status": {"reason": "NodeShutdown"}}])
    assert type(found) is RankLostError
    assert "rank 1: its node went away" in str(found)


@pytest.mark.parametrize("peers", [[], [pod(1, 12)], [pod(1, 143)]])
def test_failed_init_container_is_the_cause(peers):
    containers = [{"name": "metrics", "restartPolicy": "Always"}, {"name": "warm"}]
    ends = {"metrics": {"exitCode": 143, "reason": "Error"}, "warm": {"exitCode": 1, "reason": "Error"}}
    status = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": name, "state": {"terminated": end}} for name, end in ends.items()],
        "containerStatuses": [{"name": "train", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    early = pod(0, 0) | {"spec": {"containers": [{}], "initContainers": containers}, "status": status}
    found = failure(job(), [*peers, early])
    assert type(found) is RankLostError
    assert str(found).startswith("Job j: rank 0: init container warm ended with status 1 (Error): `kubectl logs j-0-x")


@pytest.mark.parametrize(
    ("reason", "message", "category"),
    [
        ("PodFailurePolicy", "Container train for pod n/j-1-x failed with exit code 3 matching FailJob rule", 3),
        ("PodFailurePolicy", "Pod n/j-1-x has condition DisruptionTarget matching FailJob rule at index 1", 13),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit", 12),
    ],
)
@pytest.mark.parametrize("peers", [[], [pod(0, 12)], [pod(0, 143)]])
def test_job_names_reason_without_its_pod(reason, message, category, peers):
    found = failure(job(reason, message), peers)
    if peers and category == RankLostError.exit_code:
        assert "rank 0" in str(found)
    else:
        assert type(found) is BY_EXIT_CODE[category]
        assert message in str(found)


@pytest.mark.parametrize("category", BY_EXIT_CODE.values())
def test_verdict_survives_the_triggerer(category):
    again = error_of(event_of(category("rank 1: it was so")))
    assert type(again) is category
    assert str(again) == "rank 1: it was so"
    assert error_of(event_of(None)) is None
