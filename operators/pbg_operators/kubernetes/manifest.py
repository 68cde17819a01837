"""Objects of the Kubernetes API for a gang, as JSON.

The functions are pure and need no client. The Job is Indexed, and a pod's completion index is its rank.
``podReplacementPolicy`` takes Kubernetes 1.29 or newer.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pbg_operators.kubernetes.template import merged
from pbg_tasks.config.pods import CONTAINER, SCRATCH
from pbg_tasks.errors import BY_EXIT_CODE, EvictedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config import KubernetesLaunch
    from pbg_tasks.config.pods import EnvFrom, Volume

Manifest = dict[str, Any]

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
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
"""Label that the JobSet controller gives each pod."""
RANKS = "ranks"
"""Name of the replicated Job in a JobSet; the pods of one are called ``{JobSet}-ranks-0-{index}``."""
API_VERSIONS = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}
INDEX = "batch.kubernetes.io/job-completion-index"
LABELS = {"app.kubernetes.io/name": "pbg-train", "app.kubernetes.io/managed-by": "airflow"}
LONGEST_NAME = 63
"""Longest DNS label; a pod's host name is the Job's with ``-{index}`` at its end."""
HASH_LENGTH = 12
ENDED = 128 + signal.SIGTERM
"""Exit status of a process that SIGTERM ended before it could store anything."""


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
        kind: ``Job``, or ``JobSet`` for one that restarts the gang.
        restarts: how often a JobSet does that.
    """

    run: str
    ranks: int
    servers: int
    owner: str
    launch: KubernetesLaunch
    command: tuple[str, ...]
    task: str = TRAIN
    kind: str = "Job"
    restarts: int = 0

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
    # What has failed stays for a day with Secret and Service of its name, which the other kind would meet there.
    mark = "" if gang.kind == "Job" else "s"
    tail = f"-{digest[:HASH_LENGTH]}-{mark}{attempt}"
    within, after = ("", "") if gang.kind == "Job" else (f"-{RANKS}-0", "-abcde")  # JobSet counts a pod's whole name
    room = LONGEST_NAME - len(f"{within}-{gang.size - 1}{after}") - len(tail)
    readable = re.sub(r"[^a-z0-9]+", "-", f"{prefix}-{snapshot}".lower())[:room].rstrip("-")
    return readable + tail


def job(gang: Gang, attempt: int) -> Manifest:
    """Return the Job, suspended.

    It is resumed, by the task or by Kueue, when the objects that its pods need exist. Any failed pod fails the Job,
    since a rank cannot come back alone; a new attempt is a new Job.
    """
    launch = gang.launch
    name = job_name(gang, attempt)
    labels = {**launch.labels, **launch.job_labels, **gang.labels, **_kueue(launch)}
    annotations = {**launch.annotations, **launch.job_annotations, RUN: gang.run, OWNER: gang.owner}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": gang.size,
            "parallelism": gang.size,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules(gang)},
            "activeDeadlineSeconds": launch.deadline_seconds,
            "ttlSecondsAfterFinished": launch.ttl_seconds,
            "template": _template(gang, name),
        },
    }


def _kueue(launch: KubernetesLaunch) -> Manifest:
    """Return Kueue's labels."""
    labels = {
        "kueue.x-k8s.io/queue-name": launch.kueue_queue,
        "kueue.x-k8s.io/priority-class": launch.kueue_priority,
    }
    return {name: value for name, value in labels.items() if value is not None}


def _failure_rules(gang: Gang) -> list[Manifest]:
    """Return the rules for failures with a reason in the Job's condition.

    Other failures end the Job by ``backoffLimit``. A Job that is suspended, as Kueue does to preempt one, ends its pods
    by SIGTERM, and no condition of theirs distinguishes that from a failure. So such an end does not count, unless the
    pod was disrupted: the Job waits, and has new pods when it is resumed. A JobSet takes the first rule's failures as
    final and restarts a disrupted gang, so that its Job has no rule for that.
    """
    for_good = sorted(status for status, category in BY_EXIT_CODE.items() if not category.retryable)
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": for_good},
        },
        *([disrupted] if gang.kind == "Job" else []),
        {
            "action": "Ignore",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [EvictedError.exit_code, ENDED]},
        },
    ]


def _template(gang: Gang, name: str) -> Manifest:
    launch = gang.launch
    ours = {
        "metadata": {
            "labels": {**launch.labels, **gang.labels},
            "annotations": {**launch.annotations, RUN: gang.run},
        },
        "spec": _pod(gang, name),
    }
    return merged(launch.pod_template, ours)


def _pod(gang: Gang, name: str) -> Manifest:
    launch = gang.launch
    optional = {
        "subdomain": name if gang.meets and gang.kind == "Job" else None,  # JobSet has its own
        "serviceAccountName": launch.service_account,
        "priorityClassName": launch.priority_class,
        "nodeSelector": dict(launch.node_selector),
        "tolerations": [_toleration(taint.model_dump(exclude_none=True)) for taint in launch.tolerations],
        "imagePullSecrets": [{"name": secret} for secret in launch.image_pull_secrets],
        "affinity": dict(launch.affinity),
        "topologySpreadConstraints": [dict(constraint) for constraint in launch.topology_spread],
        "runtimeClassName": launch.runtime_class,
        # Kubernetes ends such containers when those of the pod proper have ended, so that they keep no Job alive.
        "initContainers": [
            *({**sidecar, "restartPolicy": "Always"} for sidecar in launch.sidecars),
            *(dict(container) for container in launch.init_containers),
        ],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": launch.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **({} if launch.user is None else dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), launch.user)),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(gang, name)],
        "volumes": [_scratch(launch), *(_volume(volume) for volume in launch.volumes)],
        **{key: value for key, value in optional.items() if value},
    }


def _container(gang: Gang, name: str) -> Manifest:
    launch = gang.launch
    meeting = {
        "WORLD_SIZE": str(gang.size),
        "MASTER_ADDR": f"{name}-0.{name}" if gang.kind == "Job" else f"{name}-{RANKS}-0-0.{name}",
        "MASTER_PORT": str(launch.port),
        "PBG_STARTUP_SECONDS": str(launch.startup_seconds),
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
    mounts = [{"name": "scratch", "mountPath": SCRATCH}, *(_mount(volume) for volume in launch.volumes)]
    return {
        "name": CONTAINER,
        "image": launch.image,
        "command": list(gang.command),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "envFrom": [
            *(_source(source) for source in launch.env_from),
            *({"secretRef": {"name": secret}} for secret in secrets),
        ],
        **({"ports": [{"name": "rendezvous", "containerPort": launch.port}]} if gang.meets else {}),
        "resources": {"requests": {**launch.limits, **launch.requests}, "limits": launch.limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
        # The last lines of a failed rank, its error among them, are then stored beside its exit status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _scratch(launch: KubernetesLaunch) -> Manifest:
    if launch.scratch_class is None:
        return {"name": "scratch", "emptyDir": {"sizeLimit": launch.scratch}}
    return {"name": "scratch", "ephemeral": _claim(launch.scratch, launch.scratch_class, "ReadWriteOnce")}


def _claim(size: str, storage_class: str | None, access_mode: str) -> Manifest:
    spec: Manifest = {"accessModes": [access_mode], "resources": {"requests": {"storage": size}}}
    return {"volumeClaimTemplate": {"spec": spec | ({"storageClassName": storage_class} if storage_class else {})}}


def _volume(volume: Volume) -> Manifest:
    if volume.ephemeral is not None:
        made = volume.ephemeral
        return {"name": volume.name, "ephemeral": _claim(made.size, made.storage_class, made.access_mode)}
    sources = {
        "persistentVolumeClaim": ("claimName", volume.claim),
        "hostPath": ("path", volume.host_path),
        "configMap": ("name", volume.config_map),
        "secret": ("secretName", volume.secret),
    }
    return {"name": volume.name} | {kind: {key: value} for kind, (key, value) in sources.items() if value is not None}


def _mount(volume: Volume) -> Manifest:
    optional = {"readOnly": volume.read_only, "subPath": volume.sub_path}
    mount = {"name": volume.name, "mountPath": volume.mount_path}
    return mount | {key: value for key, value in optional.items() if value}


def _source(source: EnvFrom) -> Manifest:
    kind = "secretRef" if source.secret is not None else "configMapRef"
    named = {"name": source.secret or source.config_map} | ({"optional": True} if source.optional else {})
    return ({"prefix": source.prefix} if source.prefix else {}) | {kind: named}


def _toleration(taint: Mapping[str, str]) -> Manifest:
    return {**taint, "operator": "Equal" if "value" in taint else "Exists"}


def service(name: str, uid: str) -> Manifest:
    """Return the headless Service that gives each rank a host name.

    It has the name before it is ready, too.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned(name, uid, "Job"),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_UID: uid}},
    }


def secret(name: str, uid: str, values: Mapping[str, str], kind: str = "Job") -> Manifest:
    """Return the Secret whose keys are environment variables of a Job's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(name, uid, kind),
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(values),
    }


def network_policy(name: str, uid: str, kind: str = "Job") -> Manifest:
    """Return the policy that allows connections between a Job's pods only."""
    pods = {"matchLabels": pod_labels(name, uid, kind)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _owned(name, uid, kind),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
        },
    }


def pod_labels(name: str, uid: str, kind: str) -> dict[str, str]:
    """Return the labels that select the pods of a Job or JobSet."""
    return {JOB_UID: uid} if kind == "Job" else {JOBSET_NAME: name}


def pods_of(workload: Manifest) -> int:
    """Return the number of pods of a Job or JobSet."""
    spec: Manifest = workload["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return int(spec["completions"])


def _owned(name: str, uid: str, kind: str) -> Manifest:
    owner = {"apiVersion": API_VERSIONS[kind], "kind": kind, "name": name, "uid": uid}
    return {"name": name, "labels": dict(LABELS), "ownerReferences": [owner]}


def resumed() -> Manifest:
    """Return the change that resumes a Job or JobSet."""
    return {"spec": {"suspend": False}}


def logged(cursors: Mapping[str, str]) -> Manifest:
    """Return the change that records the positions of copied logs."""
    return {"metadata": {"annotations": {LOGGED: json.dumps(dict(cursors), separators=(",", ":"))}}}
