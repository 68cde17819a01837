"""Deleted pods that do not end, because their node is gone.

Kubernetes waits for such a pod until its node comes back or is removed, and does not end its Job before, not even for
its deadline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pbg_operators.kubernetes.startup import moment
from pbg_operators.kubernetes.verdict import failure_of_commands, name_of
from pbg_tasks.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pbg_operators.kubernetes.manifest import Manifest
    from pbg_tasks.errors import PbgError

PATIENCE_SECONDS = 300.0
"""Seconds beyond its grace for which a deleted pod may go on. A node that can be reached takes a few."""


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
        if deleted and not ended and now - moment(deleted) >= timedelta(seconds=PATIENCE_SECONDS):
            gone = RankLostError(f"{name}: {name_of(pod)} was deleted and does not end; its node cannot be reached")
            return failure_of_commands(name, pods) or gone
    return None
