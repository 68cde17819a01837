"""Launch of heavy tasks, on the worker or as pods.

It is never part of a run, because it changes no result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.base import Frozen, did_you_mean
from pbg_tasks.config.pods import (
    CONTAINER,
    USER,
    Affinity,
    Container,
    EnvFrom,
    Label,
    LabelKey,
    LabelValue,
    ObjectName,
    PodTemplate,
    Quantity,
    Spread,
    VariableName,
    Volume,
    amount,
    check_metadata,
    check_pinned,
)
from pbg_tasks.config.prepare import PREPARATION, SparkConnect, SparkKubernetes, SparkLaunch, SparkSubmit
from pbg_tasks.config.schema import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RANKS = 256
SHORTEST_TTL = 1200
"""Least seconds for which a finished Job stays. A task that waits for a Job may get no answer from the API for 15
minutes and look again a minute later, or in the next attempt. A Job that is missing by then counts as deleted by hand,
however well it ended.
"""
RESERVED = ("PBG_RUN_TOKEN", "PBG_SCRATCH", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "RANK")
PODS = ("validate", "partition", "bucket", "eval", "eval_part", "drift", "export", "export_part", *TOGETHER)
"""Tasks beside ``train`` that can be a pod each. ``export`` is the name for all exports of the spec,
``export_part`` for all their parts.
"""


class Toleration(Frozen):
    """Taint that pods tolerate.

    Attributes:
        key: of the taint; empty: every taint.
        value: of the taint; null: any.
        effect: of the taint; null: any.
    """

    key: str = ""
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesLaunch(Frozen):
    """Indexed Job of a task; a training has one pod a rank.

    Attributes:
        connection: Airflow connection of the cluster; without the default one, the cluster that Airflow runs in, or
            kubectl's.
        image: the training image, by digest (``name@sha256:...``), so that every rank and every retry runs one code.
        allow_tag: accept an image that is named by a tag.
        namespace: of the Job.
        resources: limits of each pod, by Kubernetes' names. Requests are alike, so that pods are the last to be
            evicted, except those in ``requests``.
        requests: those that are lower than the limits.
        scratch: size of each pod's local directory.
        scratch_class: storage class of an ephemeral claim that the directory then is; null is the node's disk.
        deadline_seconds: how long a gang may run; its progress that is stored by then stays.
        startup_seconds: how long pods may take to start before that counts as failed.
        grace_seconds: between SIGTERM and SIGKILL of a pod.
        ttl_seconds: how long a finished Job stays for inspection; at least 1200, since one that goes before its end was
            seen counts as deleted.
        port: on which rank 0 waits for the others.
        secret: a Secret whose keys become environment variables, for stores without an Airflow connection.
        environment: further variables of the pods; nothing secret.
        env_from: Secrets and ConfigMaps whose keys become variables.
        labels: of pods, Job and JobSet.
        annotations: of pods, Job and JobSet.
        job_labels: of Job and JobSet alone.
        job_annotations: of Job and JobSet alone.
        volumes: of each pod beside its scratch.
        user: id of the pods' user, its group and the group of their volumes; null: the cluster gives them, as OpenShift
            does.
        service_account: of the pods; its token is not mounted.
        image_pull_secrets: Secrets to fetch the image with.
        node_selector: labels a pod's node must have.
        tolerations: taints a pod's node may have.
        affinity: of the pods, in Kubernetes' form.
        topology_spread: constraints on how pods spread, in Kubernetes' form.
        init_containers: that end before the command begins, in Kubernetes' form.
        sidecars: containers that run beside the command and end with it, in Kubernetes' form.
        runtime_class: of the pods.
        pod_template: ``metadata`` and ``spec`` of a pod in Kubernetes' form, merged under that of the launcher.
        priority_class: decides which pods preempt which.
        kueue_queue: Kueue's local queue, which starts all pods or none.
        kueue_priority: Kueue's workload priority class, which decides what preempts what in a queue.
        deferrable: wait in Airflow's triggerer instead of a worker's slot.
        network_policy: allow connections between a gang's pods only.
        certificates: make certificates for each gang, with which its pods encrypt what they send each other.
    """

    connection: Annotated[str, Field(min_length=1)] = "kubernetes_default"
    image: str = Field(min_length=1)
    allow_tag: bool = False
    namespace: Label = "default"
    resources: dict[LabelKey, Quantity]
    requests: dict[LabelKey, Quantity] = Field(default_factory=dict)
    scratch: Quantity = "20Gi"
    scratch_class: ObjectName | None = None
    deadline_seconds: PositiveInt = 24 * 3600
    startup_seconds: PositiveInt = 900
    grace_seconds: NonNegativeInt = 60
    ttl_seconds: NonNegativeInt = 24 * 3600
    port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    secret: ObjectName | None = None
    environment: dict[VariableName, str] = Field(default_factory=dict)
    env_from: tuple[EnvFrom, ...] = ()
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    annotations: dict[LabelKey, str] = Field(default_factory=dict)
    job_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    job_annotations: dict[LabelKey, str] = Field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    user: PositiveInt | None = USER
    service_account: ObjectName | None = None
    image_pull_secrets: tuple[ObjectName, ...] = ()
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: Affinity = Field(default_factory=dict)
    topology_spread: tuple[Spread, ...] = ()
    init_containers: tuple[Container, ...] = ()
    sidecars: tuple[Container, ...] = ()
    runtime_class: ObjectName | None = None
    pod_template: PodTemplate = Field(default_factory=dict)
    priority_class: ObjectName | None = None
    kueue_queue: ObjectName | None = None
    kueue_priority: ObjectName | None = None
    deferrable: bool = True
    network_policy: bool = True
    certificates: bool = True

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        check_pinned(self.image, allow_tag=self.allow_tag)
        return self

    @model_validator(mode="after")
    def _seen(self) -> Self:
        if self.ttl_seconds < SHORTEST_TTL:
            raise ValueError(
                f"ttl_seconds is {self.ttl_seconds}, and has to be {SHORTEST_TTL} at least: a Job that is removed "
                "before the task saw how it ended counts as deleted, and is trained again"
            )
        return self

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if missing := [name for name in ("cpu", "memory") if name not in self.resources]:
            raise ValueError(f"resources: {missing[0]} is missing; a pod without it is the first to be evicted")
        containers = self.pod_template.get("spec", {}).get("containers", [])
        theirs = [each.get("name") for part in containers if part["name"] == CONTAINER for each in part.get("env", [])]
        for where, names in (("environment", self.environment), (f"pod_template: env of {CONTAINER}", theirs)):
            if taken := [name for name in RESERVED if name in names]:
                raise ValueError(f"{where}: {taken[0]} is set for every rank by the launcher")
            if self.certificates and (own := [name for name in names if str(name).startswith("PBG_TLS_")]):
                raise ValueError(f"{where}: {own[0]} is set for every rank by the launcher; set certificates: false")
        for name, asked in self.requests.items():
            limit = self.limits.get(name)
            if limit is None:
                raise ValueError(f"requests: {name} has no limit in resources; write one")
            if amount(asked) > amount(limit):
                where = "resources" if name in self.resources else "scratch"
                raise ValueError(f"requests: {name} {asked} is more than its limit in {where}, {limit}")
        return self

    @property
    def limits(self) -> dict[str, str]:
        """Limits of each pod, with ``scratch`` where that is the node's disk."""
        found = dict(self.resources)
        if self.scratch_class is None:
            found.setdefault("ephemeral-storage", self.scratch)
        return found

    @model_validator(mode="after")
    def _named_apart(self) -> Self:
        for name in ("labels", "annotations", "job_labels", "job_annotations"):
            check_metadata(getattr(self, name), name)
        template = self.pod_template.get("metadata", {})
        for name in template:
            check_metadata(template[name], f"pod_template: metadata.{name}")
        lists = {
            "volumes": [volume.name for volume in self.volumes],
            "volumes: mount_path": [volume.mount_path.rstrip("/") for volume in self.volumes],
            "init_containers and sidecars": [each["name"] for each in (*self.init_containers, *self.sidecars)],
        }
        for where, names in lists.items():
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{where}: {twice[0]!r} is there twice")
        if self.kueue_priority is not None and self.kueue_queue is None:
            raise ValueError("kueue_priority needs kueue_queue, the queue in which it counts")
        return self


class Launch(Frozen):
    """Places of training, of preparation, and tasks that are pods.

    Attributes:
        launcher: ``local``, processes of the worker; ``kubernetes``, pods of one Indexed Job; ``jobset``, the
            same within a JobSet, which restarts a broken gang.
        ranks: number of ranks that train together; the trigger form may set another number.
        max_restarts: ``local``, ``jobset``: how often a broken gang is started anew before the task fails.
        kubernetes: the Job, for launcher ``kubernetes`` and ``jobset``.
        tasks: the Jobs of other tasks, by task, with the keys of ``kubernetes``. Keys that a task leaves out are those
            of ``kubernetes``, where that is given.
        prepare: where ``validate``, ``partition`` and ``bucket`` run. ``process``: on the worker, or in pods of
            ``tasks``; ``pods``: each in a pod, of ``kubernetes`` where ``tasks`` has none; the others with
            ``resources.engine: spark`` only. ``spark_submit`` and ``spark_kubernetes`` start an application of Spark
            for each, ``spark_connect`` opens a session.
        spark_submit: the application, for prepare ``spark_submit``.
        spark_kubernetes: the SparkApplication, for prepare ``spark_kubernetes``.
        spark_connect: the server, for prepare ``spark_connect``; ``plan`` counts there, too.
    """

    launcher: Literal["local", "kubernetes", "jobset"] = "local"
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)] = 1
    max_restarts: NonNegativeInt = 2
    kubernetes: KubernetesLaunch | None = None
    tasks: dict[str, KubernetesLaunch] = Field(default={})
    prepare: Literal["process", "pods", "spark_submit", "spark_kubernetes", "spark_connect"] = "process"
    spark_submit: SparkSubmit = SparkSubmit()
    spark_kubernetes: SparkKubernetes | None = None
    spark_connect: SparkConnect | None = None

    @property
    def spark(self) -> SparkLaunch | None:
        """Application or session of Spark in which preparation runs, if it does."""
        modes = {
            "spark_submit": self.spark_submit,
            "spark_kubernetes": self.spark_kubernetes,
            "spark_connect": self.spark_connect,
        }
        return modes.get(self.prepare)

    @property
    def session(self) -> SparkConnect | None:
        """Session of Spark that commands on the worker open, if they do."""
        return self.spark_connect if self.prepare == "spark_connect" else None

    def pod(self, task: str) -> KubernetesLaunch | None:
        """Return the Job of a task beside ``train``; None: it has none."""
        common = self.kubernetes if self.prepare == "pods" and task in PREPARATION else None
        return self.tasks.get(task, common)

    @model_validator(mode="before")
    @classmethod
    def _inherited(cls, data: object) -> object:
        """Fill in the keys of each task from ``kubernetes``."""
        if not isinstance(data, dict) or not isinstance(data.get("tasks"), dict):
            return data
        common = data.get("kubernetes")
        if not isinstance(common, dict):
            return data
        filled = {name: {**common, **own} if isinstance(own, dict) else own for name, own in data["tasks"].items()}
        return {**data, "tasks": filled}

    @model_validator(mode="after")
    def _described(self) -> Self:
        if self.launcher != "local" and self.kubernetes is None:
            raise ValueError(
                f"launcher {self.launcher} needs the section kubernetes, with image and resources at least"
            )
        sections = {
            "pods": ("kubernetes", self.kubernetes, "image and resources"),
            "spark_kubernetes": ("spark_kubernetes", self.spark_kubernetes, "image"),
            "spark_connect": ("spark_connect", self.spark_connect, "remote or connection"),
        }
        section, found, keys = sections.get(self.prepare, ("", self, ""))
        if found is None:
            raise ValueError(f"prepare {self.prepare} needs the section {section}, with {keys} at least")
        if self.spark is not None and (pods := [name for name in self.tasks if name in PREPARATION]):
            raise ValueError(
                f"tasks makes {pods[0]!r} a pod, yet prepare {self.prepare} has another place for it; leave one out"
            )
        return self

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := [name for name in self.tasks if name not in PODS]:
            hints = {
                "train": "; train has the section kubernetes",
                "tune_trial": "; candidates of a search train on workers, which airflow.tasks.tune_trial chooses",
            }
            near = did_you_mean(unknown[0], PODS, cutoff=0.7)
            hint = hints.get(unknown[0], f"; {near}" if near else "")
            raise ValueError(f"tasks names {unknown[0]!r}; tasks that can be pods: {', '.join(PODS)}{hint}")
        return self

    def check_places(self, store: str, *, snapshots: Mapping[str, str], exports: Mapping[str, str]) -> None:
        """Refuse pods that would need a place of one machine.

        Args:
            store: of the graph.
            snapshots: their location by its name, where that is a location.
            exports: destinations by their names.

        Raises:
            ValueError: the message names task and place.
        """
        if self.launcher != "local" and _is_local(store):
            raise ValueError(f"launch.launcher is {self.launcher}, yet pods cannot reach store {store!r}; use s3://")
        pods = {f"launch.tasks.{task} is a pod, which": task for task in self.tasks}
        if self.prepare in ("pods", "spark_kubernetes"):
            pods[f"launch.prepare is {self.prepare}, which"] = "prepare"
        for what, task in pods.items():
            places = {"store": store}
            places |= snapshots if task in ("validate", "prepare") else exports if task.startswith("export") else {}
            if unreachable := [f"{name} {place!r}" for name, place in places.items() if _is_local(place)]:
                raise ValueError(f"{what} cannot reach {unreachable[0]}; use s3://")

    def check_engine(self, engine: str) -> None:
        """Refuse Spark as a place for tasks of another engine.

        Raises:
            ValueError: the message names both keys.
        """
        if self.spark is not None and engine != "spark":
            raise ValueError(
                f"launch.prepare is {self.prepare}, yet resources.engine is {engine}; set resources.engine: spark, or "
                "leave launch.prepare out"
            )

    def check_tasks(self, *, few_tasks: bool, eval_parts: int = 1, export_parts: int = 1) -> None:
        """Refuse pods for tasks that the graph's DAGs lack.

        Raises:
            ValueError: the message names the task.
        """
        for command, parts in TOGETHER.items():
            if few_tasks and (inside := [name for name in self.tasks if name in parts]):
                raise ValueError(
                    f"launch.tasks names {inside[0]!r}, which with airflow.few_tasks is part of the task {command!r}"
                )
            if not few_tasks and command in self.tasks:
                raise ValueError(f"launch.tasks names {command!r}, which is a task with airflow.few_tasks: true only")
        if eval_parts == 1 and "eval_part" in self.tasks:
            raise ValueError("launch.tasks names 'eval_part', which is a task with eval.parts above 1 only")
        if export_parts == 1 and "export_part" in self.tasks:
            raise ValueError("launch.tasks names 'export_part', which is a task with parts of an export above 1 only")


def _is_local(place: str) -> bool:
    """Return whether a place is a directory or file of one machine."""
    return "://" not in place or place.startswith("file://")
