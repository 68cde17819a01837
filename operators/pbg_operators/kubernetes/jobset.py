"""JobSet of a gang: the cluster restarts the gang as a whole.

The Job within is that of a gang without JobSet. A failure that no restart mends ends the JobSet at once; any other
restarts the gang, at most ``restarts`` times, from the last stored progress. JobSet makes the headless Service itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.manifest import RANKS

if TYPE_CHECKING:
    from pbg_operators.kubernetes.manifest import Gang, Manifest

ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
"""Label of a pod: number of restarts of its JobSet when it was made."""
FOR_GOOD = ["PodFailurePolicy", "DeadlineExceeded"]
"""Reasons of a failed Job that no restart mends: a rank's exit status for good, and the deadline."""


def jobset(gang: Gang, attempt: int) -> Manifest:
    """Return the JobSet, suspended.

    It is resumed, by the task or by Kueue, when its Secret exists.
    """
    launch = gang.launch
    made = manifest.job(gang, attempt)
    metadata, spec = made["metadata"], dict(made["spec"])
    ttl = spec.pop("ttlSecondsAfterFinished")
    suspended = spec.pop("suspend")
    # A policy may ask each Job for labels. Kueue's stay the JobSet's alone, as Kueue admits that as a whole.
    child: Manifest = {"labels": {**launch.labels, **launch.job_labels, **gang.labels}}
    if annotations := {**launch.annotations, **launch.job_annotations}:
        child["annotations"] = annotations
    return {
        "apiVersion": manifest.API_VERSIONS["JobSet"],
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "suspend": suspended,
            "ttlSecondsAfterFinished": ttl,
            "failurePolicy": {
                "maxRestarts": gang.restarts,
                "rules": [{"name": "forGood", "action": "FailJobSet", "onJobFailureReasons": FOR_GOOD}],
            },
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [
                {
                    "name": RANKS,
                    "replicas": 1,
                    "template": {"metadata": child, "spec": spec},
                }
            ],
        },
    }


def restarts_of(workload: Manifest) -> int:
    """Return how often a JobSet has restarted its gang.

    A Job has never done so.
    """
    return int(workload.get("status", {}).get("restarts") or 0)


def of_set(workload: Manifest, pods: list[Manifest]) -> list[Manifest]:
    """Return the pods that are not those of an earlier JobSet.

    Pods are found by the JobSet's name, and end a while after it was deleted. By then another may have the name.
    """
    made = datetime.fromisoformat(workload["metadata"]["creationTimestamp"])
    return [pod for pod in pods if datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) >= made]


def of_last_restart(workload: Manifest, pods: list[Manifest]) -> list[Manifest]:
    """Return the pods that were made since the last restart."""
    now = str(restarts_of(workload))
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(ATTEMPT, now) == now]


def child_name(name: str) -> str:
    """Return the name of the Job of a JobSet."""
    return f"{name}-{RANKS}-0"
