"""Jobs that do not end by themselves.

Kubernetes waits for a deleted pod until its node comes back or is removed, and does not end the pod's Job before, not
even for its deadline. It also counts a pod as running while a container that a mesh injected goes on, although the
command has ended. So such pods are judged by the container of the command.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pbg_operators.kubernetes.startup import moment
from pbg_operators.kubernetes.verdict import failure_of_commands, index_of, name_of, terminated
from pbg_tasks.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pbg_operators.kubernetes.manifest import Manifest
    from pbg_tasks.errors import PbgError

UNREACHABLE_SECONDS = 300.0
"""Seconds beyond its grace for which a deleted pod may go on. A node that can be reached takes a few."""
OUTLIVED_SECONDS = 10.0
"""Seconds for which other containers may run on when all commands have ended. Most end within a second or two."""
FAILED_SECONDS = 60.0
"""The same after a failed command, for the other ranks to end, too."""


def loss(name: str, pods: Sequence[Manifest], now: datetime) -> PbgError | None:
    """Return why a Job does not end.

    None where none of its pods is lost.

    Args:
        name: kind and name of the Job.
        pods: of the Job.
        now: time of the cluster.
    """
    for pod in pods:
        deleted = pod["metadata"].get("deletionTimestamp")  # by the API, the end of the pod's grace
        ended = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        if deleted and not ended and now - moment(deleted) >= timedelta(seconds=UNREACHABLE_SECONDS):
            gone = RankLostError(f"{name}: {name_of(pod)} was deleted and does not end; its node cannot be reached")
            return failure_of_commands(name, pods) or gone
    return None


def outlived(pods: Sequence[Manifest], size: int, now: datetime) -> bool:
    """Return whether only other containers keep a Job from ending.

    Args:
        pods: of the Job.
        size: number of pods that it takes.
        now: time of the cluster.
    """
    ended = [pod for pod in pods if terminated(pod)]
    lingering = [pod for pod in ended if pod.get("status", {}).get("phase") == "Running"]
    if not lingering:
        return False
    idle = now - max(moment(terminated(pod)["finishedAt"]) for pod in lingering)
    if len({index_of(pod) for pod in ended}) == size and idle >= timedelta(seconds=OUTLIVED_SECONDS):
        return True
    failed = [pod for pod in lingering if terminated(pod).get("exitCode")]
    return any(now - moment(terminated(pod)["finishedAt"]) >= timedelta(seconds=FAILED_SECONDS) for pod in failed)
