"""Objects of the Kubernetes API for a gang, as JSON.

The functions are pure and need no client. The Job is Indexed, and a pod's completion index is its rank.
``podReplacementPolicy`` takes Kubernetes 1.29 or newer.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import BY_EXIT_CODE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import KubernetesLaunch

Manifest = dict[str, Any]

CONTAINER = "train"
RUN = "pbg-tasks/run"
"""Annotation of a Job: the run that it trains."""
OWNER = "pbg-tasks/owner"
"""Annotation of a Job: the task instance that made it."""
TASK = "app.kubernetes.io/component"
"""Label of a Job and its pods: the task that they do."""
TRAIN = "train"
LOGGED = "pbg-tasks/logged"
"""Annotation of a Job: positions up to which each pod's log has been copied into the task's."""
JOB_UID = "batch.kubernetes.io/controller-uid"
"""Label that the Job controller gives each pod; a later Job of the same name has another value."""
INDEX = "batch.kubernetes.io/job-completion-index"
LABELS = {"app.kubernetes.io/name": "pbg-train", "app.kubernetes.io/managed-by": "airflow"}
SCRATCH = "/scratch"
USER = 65532
"""User id of the pods; the training image makes this user."""
LONGEST_NAME = 63
"""Longest DNS label; a pod's host name is the Job's with ``-{index}`` at its end."""
HASH_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that train one run together, or the pod of another task.

    Attributes:
        run: URL of the run.
        ranks: number of trainers; they have ranks 0 to ``ranks - 1``.
        servers: number of dedicated partition servers; they have the ranks after those.
        owner: the task instance that starts them.
        launch: settings of each pod.
        command: of each pod; the rank's role follows from its index.
        task: that the pods do.
    """

    run: str
    ranks: int
    servers: int
    owner: str
    launch: KubernetesLaunch
    command: tuple[str, ...]
    task: str = TRAIN

    @property
    def size(self) -> int:
        """Number of pods."""
        return self.ranks + self.servers

    @property
    def meets(self) -> bool:
        """Whether the pods connect to each other."""
        return self.task == TRAIN

    @property
    def labels(self) -> Manifest:
        """Labels of the Job, its pods and its other objects."""
        return {**LABELS, TASK: re.sub(r"[^A-Za-z0-9_.-]", "-", self.task)[:LONGEST_NAME].strip("-_.")}


def job_name(gang: Gang, attempt: int) -> str:
    """Return the name of a gang's Job.

    It is the same for the same run spec, number of pods' digits and attempt. Two DAG runs train a run together at no
    time, but each may do another task of it, as on workers: the first result counts. So the hash in such a name is of
    run, task and owner.
    """
    run_id = gang.run.rstrip("/").rpartition("/")[2]
    snapshot, _, digest = run_id.rpartition("-")
    prefix = "pbg"
    if gang.task != TRAIN:
        prefix = f"pbg-{gang.task}"
        digest = hashlib.sha256(f"{gang.run}\n{gang.task}\n{gang.owner}".encode()).hexdigest()
    tail = f"-{digest[:HASH_LENGTH]}-{attempt}"
    room = LONGEST_NAME - len(f"-{gang.size - 1}") - len(tail)
    readable = re.sub(r"[^a-z0-9]+", "-", f"{prefix}-{snapshot}".lower())[:room].rstrip("-")
    return readable + tail


def job(gang: Gang, attempt: int) -> Manifest:
    """Return the Job, suspended.

    It is resumed, by the task or by Kueue, when the objects that its pods need exist. Any failed pod fails the Job,
    since a rank cannot come back alone; a new attempt is a new Job.
    """
    launch = gang.launch
    name = job_name(gang, attempt)
    labels = gang.labels
    if launch.kueue_queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = launch.kueue_queue
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {RUN: gang.run, OWNER: gang.owner}},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": gang.size,
            "parallelism": gang.size,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "activeDeadlineSeconds": launch.deadline_seconds,
            "ttlSecondsAfterFinished": launch.ttl_seconds,
            "template": {
                "metadata": {"labels": gang.labels, "annotations": {RUN: gang.run}},
                "spec": _pod(gang, name),
            },
        },
    }


def _failure_rules() -> list[Manifest]:
    """Return the rules for failures with a reason in the Job's condition.

    Other failures end the Job by ``backoffLimit``.
    """
    for_good = sorted(status for status, category in BY_EXIT_CODE.items() if not category.retryable)
    return [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": for_good},
        },
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _pod(gang: Gang, name: str) -> Manifest:
    launch = gang.launch
    optional = {
        "subdomain": name if gang.meets else None,
        "serviceAccountName": launch.service_account,
        "priorityClassName": launch.priority_class,
        "nodeSelector": dict(launch.node_selector),
        "tolerations": [_toleration(taint.model_dump(exclude_none=True)) for taint in launch.tolerations],
        "imagePullSecrets": [{"name": secret} for secret in launch.image_pull_secrets],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": launch.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(gang, name)],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": launch.scratch}}],
        **{key: value for key, value in optional.items() if value},
    }


def _container(gang: Gang, name: str) -> Manifest:
    launch = gang.launch
    meeting = {
        "WORLD_SIZE": str(gang.size),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(launch.port),
    }
    environment = {
        **(meeting if gang.meets else {}),
        "PBG_SCRATCH": SCRATCH,
        "PBG_GRACE_SECONDS": str(launch.grace_seconds),
        "TMPDIR": SCRATCH,
        "HOME": SCRATCH,
        "PYTHONUNBUFFERED": "1",
        **launch.environment,
    }
    secrets = [name] if launch.secret is None else [launch.secret, name]  # for a variable in both, the last one counts
    resources = {**launch.resources, "ephemeral-storage": launch.resources.get("ephemeral-storage", launch.scratch)}
    return {
        "name": CONTAINER,
        "image": launch.image,
        "command": list(gang.command),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "envFrom": [{"secretRef": {"name": secret}} for secret in secrets],
        **({"ports": [{"name": "rendezvous", "containerPort": launch.port}]} if gang.meets else {}),
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}],
        # The last lines of a failed rank, its error among them, are then stored beside its exit status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _toleration(taint: Mapping[str, str]) -> Manifest:
    return {**taint, "operator": "Equal" if "value" in taint else "Exists"}


def service(name: str, uid: str) -> Manifest:
    """Return the headless Service that gives each rank a host name.

    It has the name before it is ready, too.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned(name, uid),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_UID: uid}},
    }


def secret(name: str, uid: str, values: Mapping[str, str]) -> Manifest:
    """Return the Secret whose keys are environment variables of a Job's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(name, uid),
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(values),
    }


def network_policy(name: str, uid: str) -> Manifest:
    """Return the policy that allows connections between a Job's pods only."""
    pods = {"matchLabels": {JOB_UID: uid}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _owned(name, uid),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
        },
    }


def _owned(name: str, uid: str) -> Manifest:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    return {"name": name, "labels": dict(LABELS), "ownerReferences": [owner]}


def resumed() -> Manifest:
    """Return the change that lets a Job's pods start."""
    return {"spec": {"suspend": False}}


def logged(cursors: Mapping[str, str]) -> Manifest:
    """Return the change that records the positions of copied logs."""
    return {"metadata": {"annotations": {LOGGED: json.dumps(dict(cursors), separators=(",", ":"))}}}
