"""Pods that do not start: the cause, and the time limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pbg_operators.kubernetes.jobset import child_name, restarts_of
from pbg_operators.kubernetes.manifest import pods_of
from pbg_operators.kubernetes.verdict import name_of, title_of
from pbg_tasks.config.pods import CONTAINER
from pbg_tasks.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_operators.kubernetes.manifest import Manifest
    from pbg_tasks.errors import PbgError

MISTAKES = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
    }
)
"""Reasons of a waiting container that a person has to mend: the image's name, a missing Secret."""


def overdue(job: Manifest, pods: Sequence[Manifest], seconds: int, now: datetime, made: int) -> PbgError | None:
    """Return why a gang has not started within ``seconds``.

    None is returned while it may still start. A Job that waits for Kueue has not begun: its time does not count. A pod
    that takes the place of a deleted one has time of its own.

    Args:
        job: Job or JobSet.
        pods: of it, as they are now.
        seconds: limit.
        now: time of the cluster.
        made: number of its pods that were made, also where they are gone and others follow.
    """
    began = _began(job, pods)
    if job["spec"].get("suspend") or began is None or now - moment(began) < timedelta(seconds=seconds):
        return None
    name = title_of(job)
    pending = [pod for pod in pods if pod.get("status", {}).get("phase", "Pending") == "Pending"]
    waiting = [pod for pod in pending if now - moment(_made(pod)) >= timedelta(seconds=seconds)]
    for pod in waiting:
        if (reason := _container_waits_for(pod)) is not None:
            return ConfigError(f"{name}: {name_of(pod)} did not start within {seconds} s: {reason}")
    if waiting:
        return ResourceError(f"{name}: {name_of(waiting[0])} {_pod_waits_for(waiting[0], seconds)}")
    missing = 0 if restarts_of(job) else pods_of(job) - made
    if missing > 0 and not job.get("status", {}).get("succeeded"):
        about = job["metadata"]
        maker = about["name"] if job.get("kind", "Job") == "Job" else child_name(about["name"])
        return ResourceError(
            f"{name}: {missing} pods were not made within {seconds} s; is a quota used up? {_events(about, maker)} has "
            "the reason; where that is their user, as on OpenShift, write user: null in launch.kubernetes"
        )
    return None


def _began(job: Manifest, pods: Sequence[Manifest]) -> str | None:
    """Return the time from which the start of pods counts.

    A JobSet has no time of start: it is the one when it was resumed, or its gang restarted.
    """
    status = job.get("status", {})
    if "replicatedJobs" not in job["spec"]:
        started: str | None = status.get("startTime")
        return started
    resumed = [
        found["lastTransitionTime"]
        for found in status.get("conditions") or []
        if found["type"] == "Suspended" and found["status"] == "False"
    ]
    return max([*resumed, *map(_made, pods)], default=None)


def _made(pod: Manifest) -> str:
    return str(pod["metadata"]["creationTimestamp"])


def _container_waits_for(pod: Manifest) -> str | None:
    """Return why a container waits, if a person has to mend it."""
    status = pod.get("status", {})
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = one.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in MISTAKES:
            where = "" if one["name"] == CONTAINER else f"container {one['name']}: "
            return f"{where}{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return None


def _pod_waits_for(pod: Manifest, seconds: int) -> str:
    if (node := pod["spec"].get("nodeName")) is not None:
        events = _events(pod["metadata"], pod["metadata"]["name"])
        return f"did not start on node {node} within {seconds} s; an image or a volume is not there yet: {events}"
    listed = pod.get("status", {}).get("conditions") or []
    texts = [found.get("message") for found in listed if found["type"] == "PodScheduled" and found["status"] == "False"]
    return f"got no node within {seconds} s: {(texts or [None])[0] or 'the cluster gives no reason'}"


def _events(about: Manifest, name: str) -> str:
    """Return the command that shows the events of an object."""
    namespace = about.get("namespace", "default")
    return f"`kubectl get events --namespace {namespace} --field-selector involvedObject.name={name}`"


def moment(text: str) -> datetime:
    """Return a time of the API, which is RFC 3339."""
    return datetime.fromisoformat(text).astimezone(UTC)
