"""Time limit of the start of pods, first and later ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.submission import Handle
from pbg_operators.kubernetes.watch import Watch
from pbg_tasks.errors import ConfigError
from tests.operators.kubernetes.gangs import gang

STARTED, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:59:30Z"


class LongRunning:
    """Cluster whose Job has run for two hours."""

    now = datetime(2026, 1, 1, 2, tzinfo=UTC)

    def __init__(self):
        self.pods = [pod(0, STARTED, "Running"), pod(1, STARTED, "Running")]
        self.deleted = []
        self.logged = {}

    def read(self, kind, name):
        made = manifest.job(gang(ranks=2), 1)
        about = {"name": name, "uid": "u", **manifest.logged(self.logged)["metadata"]}
        return made | {
            "kind": kind,
            "metadata": about,
            "spec": made["spec"] | {"suspend": False},
            "status": {"startTime": STARTED},
        }

    def labelled(self, _labels):
        return self.pods

    def log(self, _pod, _since):
        return iter(())

    def delete_job(self, name, *_):
        self.deleted.append(name)


def pod(rank, made, phase):
    labels = {manifest.INDEX: str(rank)}
    about = {"name": f"j-{rank}", "uid": f"{rank}-{made}", "creationTimestamp": made, "labels": labels}
    return {"metadata": about, "spec": {"containers": []}, "status": {"phase": phase}}


def waiting(container, reason):
    return {"name": container, "state": {"waiting": {"reason": reason}}}


@pytest.fixture
def cluster():
    return LongRunning()


@pytest.fixture
def look(cluster):
    return Watch(cluster, Handle("j", "u", 1), startup_seconds=900, interval=1.0, say=str).look


def test_pod_made_anew_has_time_to_start(cluster, look):
    assert look() is None
    cluster.pods = cluster.pods[:1]  # the other one was deleted, and its place is not taken yet
    assert look() is None
    cluster.pods = [*cluster.pods, pod(1, LATER, "Pending")]
    assert look() is None
    assert cluster.deleted == []


def test_pod_made_anew_is_waited_for_no_longer(cluster, look):
    assert look() is None
    cluster.pods, cluster.now = [*cluster.pods[:1], pod(1, LATER, "Pending")], datetime(2026, 1, 1, 2, 15, tzinfo=UTC)
    assert "rank 1 got no node within 900 s" in str(look().error)
    assert cluster.deleted == ["j"]


def test_pod_with_node_names_its_events(cluster, look):
    """A volume that cannot be mounted shows in the pod's events alone."""
    late = pod(1, STARTED, "Pending")
    late["spec"]["nodeName"] = "n7"
    late["status"]["containerStatuses"] = [waiting("train", "ContainerCreating")]
    cluster.pods = [*cluster.pods[:1], late]
    error = str(look().error)
    assert "rank 1 did not start on node n7 within 900 s; an image or a volume is not there yet: `kubectl get" in error
    assert "involvedObject.name=j-1`" in error


def test_image_of_init_container_is_a_mistake(cluster, look):
    late = pod(1, STARTED, "Pending")
    late["status"]["initContainerStatuses"] = [waiting("warm", "ImagePullBackOff")]
    late["status"]["containerStatuses"] = [waiting("train", "PodInitializing")]
    cluster.pods = [*cluster.pods[:1], late]
    error = look().error
    assert isinstance(error, ConfigError)
    assert "rank 1 did not start within 900 s: container warm: ImagePullBackOff" in str(error)


def test_pod_that_was_never_made_ends_the_wait(cluster, look):
    cluster.pods = cluster.pods[:1]
    error = str(look().error)
    assert "1 pods were not made within 900 s; is a quota used up?" in error
    assert "--field-selector involvedObject.name=j` has the reason; where that is their user" in error
    assert cluster.deleted == ["j"]


def test_pod_of_earlier_watch_may_come_again(cluster, look):
    """A watch may begin while a rank has no pod."""
    cluster.logged = {"j-0": f"{STARTED}/1", "j-1": f"{STARTED}/1"}
    cluster.pods = cluster.pods[:1]
    assert look() is None
    assert cluster.deleted == []
    cluster.now = datetime(2026, 1, 1, 2, 15, tzinfo=UTC)
    assert "1 pods were not made within 900 s; is a quota used up?" in str(look().error)


def test_pod_that_succeeded_is_not_missed(cluster, look):
    """The node of a rank that has ended may go."""
    cluster.pods[1]["status"]["phase"] = "Succeeded"
    assert look() is None
    cluster.pods = cluster.pods[:1]
    assert look() is None
    cluster.now = datetime(2026, 1, 1, 2, 15, tzinfo=UTC)
    assert look() is None
    assert cluster.deleted == []


def test_pod_not_made_anew_ends_the_wait(cluster, look):
    assert look() is None
    cluster.pods = cluster.pods[:1]
    assert look() is None
    cluster.now = datetime(2026, 1, 1, 2, 15, tzinfo=UTC)
    assert "1 pods were not made within 900 s; is a quota used up?" in str(look().error)
    assert cluster.deleted == ["j"]
