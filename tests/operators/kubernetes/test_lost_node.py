"""Deleted pods that never end, as on a node without power."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.jobset import ATTEMPT, jobset
from pbg_operators.kubernetes.submission import Handle
from pbg_operators.kubernetes.watch import Watch
from pbg_tasks.errors import RankLostError
from tests.operators.kubernetes.gangs import gang

TAINT = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "NoExecute"}


class Waiting:
    """Cluster whose Job waits for a deleted pod."""

    def __init__(self, now, conditions):
        self.now, self.conditions = now, conditions
        self.deleted = []

    def read(self, kind, name):
        made = manifest.job(gang(ranks=2), 1)
        target = {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded", "message": ""}
        status = {"startTime": "2026-01-01T00:00:00Z", "conditions": [target]}
        about = {"name": name, "uid": "u"}
        return made | {"kind": kind, "metadata": about, "spec": made["spec"] | {"suspend": False}, "status": status}

    def labelled(self, _labels):
        pods = [self.pod(rank) for rank in range(2)]
        pods[1]["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        pods[1]["status"]["conditions"] = self.conditions
        return pods

    def pod(self, rank):
        labels = {manifest.INDEX: str(rank)}
        about = {"name": f"j-{rank}", "uid": str(rank), "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
        return {"metadata": about, "spec": {"containers": []}, "status": {"phase": "Running"}}

    def log(self, _pod, _since):
        return iter(())

    def delete_job(self, name, *_):
        self.deleted.append(name)


class Restarted(Waiting):
    """Cluster whose JobSet waits for a pod of before its restart."""

    def read(self, kind, name):
        made = jobset(gang(ranks=2, kind="JobSet", restarts=2), 1)
        about = {"name": name, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
        spec = made["spec"] | {"suspend": False}
        return made | {"kind": kind, "metadata": about, "spec": spec, "status": {"restarts": 1}}

    def labelled(self, labels):
        _, pod = super().labelled(labels)
        pod["metadata"]["labels"][ATTEMPT] = "0"
        return [pod]


@pytest.fixture
def look():
    def look(minute, conditions=()):
        cluster = Waiting(datetime(2026, 1, 1, 1, minute, tzinfo=UTC), [*conditions])
        watch = Watch(cluster, Handle("j", "u", 1), startup_seconds=900, interval=1.0, say=str)
        return watch.look(), cluster.deleted

    return look


def test_deleted_pod_has_time_to_end(look):
    assert look(4) == (None, [])


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [([], "rank 1 was deleted and does not end; its node"), ([TAINT], "rank 1 was deleted for a taint of its node")],
)
def test_pod_that_never_ends_is_lost(look, conditions, sentence):
    verdict, deleted = look(5, conditions)
    assert isinstance(verdict.error, RankLostError)
    assert f"Job j: {sentence}" in str(verdict.error)
    assert deleted == ["j"]


@pytest.mark.parametrize(("minute", "deleted"), [(4, []), (5, ["j"])])
def test_pod_that_keeps_gang_from_restart_is_lost(minute, deleted):
    """Kubernetes before 1.31 ends the Job within before its pods have ended."""
    cluster = Restarted(datetime(2026, 1, 1, 1, minute, tzinfo=UTC), [])
    watch = Watch(cluster, Handle("j", "u", 1, "JobSet"), startup_seconds=900, interval=1.0, say=str)
    verdict = watch.look()
    assert cluster.deleted == deleted
    assert (verdict is None) == (not deleted)
    assert verdict is None or "JobSet j: rank 1 was deleted and does not end; its node" in str(verdict.error)
