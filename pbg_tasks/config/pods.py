"""Parts of pods, in Kubernetes' terms.

Parts with a model of their own have keys of this project; others are written as Kubernetes writes them. Of those the
upper keys are checked here, where a spec is read, and the rest by the cluster, which refuses unknown keys.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pbg_tasks.config.base import Frozen

# Kubernetes' own forms: a DNS label, a name of an object, a quantity, the key of a label, the value of one, a
# variable's name.
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$")]
LabelKey = Annotated[str, Field(pattern=r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MountPath = Annotated[str, Field(pattern=r"^/[^:]+$")]

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
CONTAINER = "train"
"""Name of the container that runs the command, in the pods of every task."""
SCRATCH = "/scratch"
USER = 65532
"""Id of the user and of the group that the images make."""
OWN_KEYS = re.compile(
    r"^(pbg-tasks|batch\.kubernetes\.io|jobset\.sigs\.k8s\.io)/"
    r"|^app\.kubernetes\.io/(name|managed-by|component)$"
    r"|^kueue\.x-k8s\.io/(queue-name|priority-class)$"
)
"""Keys of labels and annotations that are set by the launcher or the cluster."""
AFFINITY = frozenset({"nodeAffinity", "podAffinity", "podAntiAffinity"})
SPREAD = frozenset(
    {"labelSelector", "matchLabelKeys", "maxSkew", "minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy"}
    | {"topologyKey", "whenUnsatisfiable"}
)
KEYS_OF_CONTAINER = frozenset(
    {"args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports"}
    | {"readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext"}
    | {"startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty"}
    | {"volumeDevices", "volumeMounts", "workingDir"}
)
KEYS_OF_POD = frozenset(
    {"activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy"}
    | {"enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname"}
    | {"hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os", "overhead"}
    | {"preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims", "resources"}
    | {"restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount"}
    | {"serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "tolerations"}
    | {"terminationGracePeriodSeconds", "topologySpreadConstraints", "volumes", "workloadRef"}
)
OURS = ("command", "args", "securityContext", "restartPolicy", "restartPolicyRules")
"""Keys of the container of the command that no template has: a container's security context goes before the pod's."""
NODES = ("hostNetwork", "hostPID", "hostIPC")
"""Keys of a pod that let it share what is the node's; no NetworkPolicy holds for such a network."""
LISTS_OF_CONTAINER = ("env", "envFrom", "ports", "volumeMounts")
LISTS_OF_POD = ("hostAliases", "imagePullSecrets", "tolerations", "topologySpreadConstraints", "volumes")
"""Lists of objects of which the launcher has entries, too."""
_FACTORS = {"m": 0.001, "": 1.0} | {unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)}
_FACTORS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)}


class Ephemeral(Frozen):
    """Volume that is made with each pod, and removed with it.

    Attributes:
        size: of the claim.
        storage_class: of the claim; null is the cluster's default.
        access_mode: of the claim.
    """

    size: Quantity
    storage_class: ObjectName | None = None
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany", "ReadOnlyMany"] = "ReadWriteOnce"


class Volume(Frozen):
    """Volume of each pod beside its scratch; it has exactly one source.

    Attributes:
        name: of the volume.
        mount_path: directory of the container in which the files are.
        read_only: whether the command may not write there.
        sub_path: part of the volume that is mounted.
        claim: name of a PersistentVolumeClaim.
        ephemeral: a claim that is made with each pod.
        host_path: directory of the node.
        config_map: name of a ConfigMap.
        secret: name of a Secret.
    """

    name: Label
    mount_path: MountPath
    read_only: bool = False
    sub_path: str | None = None
    claim: ObjectName | None = None
    ephemeral: Ephemeral | None = None
    host_path: MountPath | None = None
    config_map: ObjectName | None = None
    secret: ObjectName | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = ("claim", "ephemeral", "host_path", "config_map", "secret")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"volume {self.name!r} takes one of {', '.join(sources)}, and has {found}")
        if self.name == "scratch" or self.mount_path.rstrip("/") == SCRATCH:
            raise ValueError(f"volume {self.name!r}: the launcher makes {SCRATCH}; use scratch and scratch_class")
        return self


class EnvFrom(Frozen):
    """Source of environment variables: a Secret or a ConfigMap.

    Attributes:
        secret: name of a Secret.
        config_map: name of a ConfigMap.
        prefix: put in front of each key.
        optional: whether pods start without the object.
    """

    secret: ObjectName | None = None
    config_map: ObjectName | None = None
    prefix: str | None = None
    optional: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.secret is None) == (self.config_map is None):
            raise ValueError("env_from takes a secret or a config_map in each entry, and exactly one of them")
        return self


def amount(quantity: str) -> float:
    """Return the number that a quantity stands for."""
    digits = re.match(r"[0-9.]+", quantity)
    number = digits[0] if digits else "0"
    return float(number) * _FACTORS[quantity[len(number) :]]


def check_pinned(image: str, *, allow_tag: bool) -> None:
    """Refuse an image that is not given by digest.

    Raises:
        ValueError: the message names the image.
    """
    if not allow_tag and not DIGEST.search(image):
        raise ValueError(
            f"image {image!r} is not given by digest (name@sha256:...): a tag may name another image when a pod is "
            "replaced; set allow_tag to take it all the same"
        )


def check_keys(value: object, known: frozenset[str], where: str) -> None:
    """Refuse what is no mapping, or has a key that Kubernetes lacks.

    Raises:
        ValueError: the message names place and key.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: must be a mapping, as Kubernetes writes it")  # noqa: TRY004 - for pydantic
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise ValueError(f"{where}: unknown key {key!r}; {hint}")


def _checked(known: frozenset[str], value: dict[str, Any]) -> dict[str, Any]:
    check_keys(value, known, "in Kubernetes' form")
    return value


def _checked_container(value: dict[str, Any]) -> dict[str, Any]:
    check_containers([value], "in Kubernetes' form", {"name", "image"})
    if value["name"] == CONTAINER:
        raise ValueError(f"the name {CONTAINER!r} is that of the container that runs the command")
    return value


def check_containers(containers: object, where: str, required: set[str]) -> None:
    """Refuse containers with keys that are unknown or missing.

    Raises:
        ValueError: the message names place and key.
    """
    if not isinstance(containers, list):
        raise ValueError(f"{where}: must be a list of containers")  # noqa: TRY004 - for pydantic
    for container in containers:
        check_keys(container, KEYS_OF_CONTAINER, where)
        if missing := sorted(name for name in required if not isinstance(container.get(name), str)):
            raise ValueError(f"{where}: {missing[0]} is missing, or no text")


def _check_lists(part: Mapping[str, Any], lists: Iterable[str], where: str) -> None:
    for name in lists:
        entries = part.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise ValueError(f"{where}: {name} must be a list of mappings, as Kubernetes writes it")


def _checked_template(value: dict[str, Any]) -> dict[str, Any]:
    check_keys(value, frozenset({"metadata", "spec"}), "of a pod")
    check_keys(value.get("metadata", {}), frozenset({"labels", "annotations"}), "metadata")
    spec = value.get("spec", {})
    check_keys(spec, KEYS_OF_POD, "spec")
    for part in ("containers", "initContainers"):
        check_containers(spec.get(part, []), f"spec.{part}", {"name"})
        for container in spec.get(part, []):
            _check_lists(container, LISTS_OF_CONTAINER, f"spec.{part}: {container['name']}")
    _check_lists(spec, LISTS_OF_POD, "spec")
    for container in spec.get("containers", []):
        if container["name"] == CONTAINER and (taken := [key for key in OURS if key in container]):
            raise ValueError(f"spec.containers: {CONTAINER} has {taken[0]}, which is the launcher's; remove it")
    if shared := [key for key in NODES if spec.get(key)]:
        raise ValueError(f"spec: {shared[0]} would let pods share what is the node's; remove it")
    return value


def check_metadata(keys: object, where: str) -> None:
    """Refuse labels or annotations that are no text, or not free.

    Some are set by the launcher or the cluster.

    Raises:
        ValueError: the message names place and key.
    """
    if not isinstance(keys, Mapping) or not all(isinstance(text, str) for item in keys.items() for text in item):
        raise ValueError(f"{where}: must be a mapping from text to text; quote numbers and true")
    if taken := [key for key in keys if OWN_KEYS.match(key)]:
        raise ValueError(f"{where}: {taken[0]} is set by the launcher or the cluster; use another key")


Affinity = Annotated[dict[str, Any], AfterValidator(partial(_checked, AFFINITY))]
Spread = Annotated[dict[str, Any], AfterValidator(partial(_checked, SPREAD))]
Container = Annotated[dict[str, Any], AfterValidator(_checked_container)]
PodTemplate = Annotated[dict[str, Any], AfterValidator(_checked_template)]
