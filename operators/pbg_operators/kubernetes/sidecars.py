"""Pods that only containers of others keep running.

A mesh may inject a container into each pod that does not end by itself. Kubernetes then counts the pod as running,
although its command has ended, and the Job would go on until its deadline. So such pods are judged by the container of
the command.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pbg_operators.kubernetes.startup import moment
from pbg_operators.kubernetes.verdict import index_of, terminated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pbg_operators.kubernetes.manifest import Manifest

PATIENCE_SECONDS = 10.0
"""Seconds for which other containers may run on when all commands have ended. Most end within a second or two."""
FAILED_SECONDS = 60.0
"""The same after a failed command, for the other ranks to end, too."""


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
    if len({index_of(pod) for pod in ended}) == size and idle >= timedelta(seconds=PATIENCE_SECONDS):
        return True
    failed = [pod for pod in lingering if terminated(pod).get("exitCode")]
    return any(now - moment(terminated(pod)["finishedAt"]) >= timedelta(seconds=FAILED_SECONDS) for pod in failed)
