"""Reason of a gang's end, as an error of this package.

It is found in the cluster's data about the Job and its pods. When one rank fails, its peers follow: they report a lost
rank, or get a signal to end. So the pods' ends are weighed, and an end that can only be a cause comes before one that
can be a consequence.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_operators.kubernetes.conditions import condition
from pbg_operators.kubernetes.manifest import ENDED, INDEX, TASK, TRAIN
from pbg_tasks.config.pods import CONTAINER
from pbg_tasks.errors import BY_EXIT_CODE, ConfigError, EvictedError, PbgError, RankLostError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_operators.kubernetes.manifest import Manifest

SIGNALLED = 128
"""Exit status of a shell or container for signal n is this plus n."""
STARTING_FAILED = frozenset({"StartError", "ContainerCannotRun"})
NO_SUCH_COMMAND = frozenset({125, 126, 127})
DISRUPTIONS: dict[str, tuple[type[PbgError], str]] = {
    "PreemptionByScheduler": (EvictedError, "was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": (EvictedError, "was evicted, as when its node is drained"),
    "DeletionByTaintManager": (RankLostError, "was deleted for a taint of its node, as when the node is unreachable"),
    "DeletionByPodGC": (RankLostError, "was on a node that is gone"),
    "TerminationByKubelet": (EvictedError, "was ended by its node"),
}
"""Reasons of a pod's condition DisruptionTarget."""
LOST = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
"""Reasons of a pod's status when its node was lost."""


LAST = "~"
"""Time that sorts after every other."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of one pod.

    Attributes:
        weight: of two ends, the one with the smaller weight is the cause.
        when: RFC 3339, to the second.
        error: its meaning.
    """

    weight: int
    when: str
    error: PbgError


def failure(job: Manifest, pods: Sequence[Manifest]) -> PbgError:
    """Return the reason why a Job or JobSet has failed."""
    name = title_of(job)
    failed = condition(job, "Failed") or {}
    if failed.get("reason") == "DeadlineExceeded":
        seconds = job["spec"].get("activeDeadlineSeconds")
        return ResourceError(f"{name} ran longer than its deadline of {seconds} s; what it stored stays")
    return _cause(name, [*_endings(pods), _ending_of_condition(failed)])


def failure_of_commands(name: str, pods: Sequence[Manifest]) -> PbgError | None:
    """Return the reason why commands have failed in pods that go on.

    None where none has failed.
    """
    endings = _endings(pods)
    return _cause(name, endings) if endings else None


def _endings(pods: Sequence[Manifest]) -> list[Ending]:
    return [ending for pod in pods if (ending := _ending(pod)) is not None]


def _cause(name: str, endings: Sequence[Ending]) -> PbgError:
    cause = min(endings, key=lambda ending: (ending.weight, ending.when))
    return type(cause.error)(f"{name}: {cause.error}")


def _ending_of_condition(failed: Manifest) -> Ending:
    """Return the end of a pod that may be gone.

    It is taken from the Job's condition. Facts from the pods themselves come before these.
    """
    message = f"{failed.get('reason', 'unknown reason')}: {failed.get('message', '')}".strip(": ")
    if "condition DisruptionTarget" in message:
        return Ending(0, LAST, EvictedError(message))
    status = re.search(r"exit code (\d+)", message)
    weight, category = _weighed(int(status[1])) if status else (9, RankLostError)
    return Ending(weight, LAST, category(message))


def _ending(pod: Manifest) -> Ending | None:
    """Return the end of a failed pod; None of another pod."""
    state = terminated(pod)
    rank = name_of(pod)
    when = state.get("finishedAt") or pod["metadata"].get("deletionTimestamp") or pod["metadata"]["creationTimestamp"]
    message = _last_line(state.get("message", ""))
    outside = _from_outside(pod, state, rank)
    if outside is not None:
        return Ending(0, when, outside)
    status = state.get("exitCode", 0)
    if status == 0:
        early = None if state else _init_failure(pod, rank)
        return None if early is None else Ending(5, when, early)
    if state.get("reason") in STARTING_FAILED or status in NO_SUCH_COMMAND:
        return Ending(1, when, ConfigError(f"{rank}: the image cannot run `pbg`: {message or state.get('reason')}"))
    weight, category = _weighed(status)
    reason = message.removeprefix("error: ").removeprefix(f"{category.kind}: ") or f"exit status {status}"
    if category is PbgError:
        reason = f"crashed with status {status}: {message or 'it printed nothing'}"
    elif status > SIGNALLED:
        reason = f"ended by {_signal_name(status)}" + (f": {message}" if message else "")
    return Ending(weight, when, category(f"{rank}: {reason}"))


def _from_outside(pod: Manifest, state: Manifest, rank: str) -> PbgError | None:
    """Return an outside cause of a pod's end, if there is one.

    It is the kernel, the pod's node or the cluster.
    """
    status = pod.get("status", {})
    if state.get("reason") == "OOMKilled":
        limit = _container(pod).get("resources", {}).get("limits", {}).get("memory")
        return ResourceError(
            f"{rank} ran out of memory (limit {limit}): raise {section_of(pod)}.resources.memory or num_partitions"
        )
    reason, message = status.get("reason", ""), status.get("message", "")
    if reason == "Evicted":
        return ResourceError(f"{rank} was evicted: {message}")
    if reason in LOST:
        return RankLostError(f"{rank}: its node went away: {reason}: {message}")
    disrupted = condition(pod, "DisruptionTarget")
    if disrupted is not None:
        category, what = DISRUPTIONS.get(disrupted.get("reason", ""), (EvictedError, "was disrupted"))
        return category(f"{rank} {what}: {disrupted.get('message') or disrupted.get('reason')}")
    return None


def _init_failure(pod: Manifest, rank: str) -> PbgError | None:
    """Return the failure of a container that runs before the command."""
    sidecars = {one["name"] for one in pod["spec"].get("initContainers") or [] if one.get("restartPolicy") == "Always"}
    for one in pod.get("status", {}).get("initContainerStatuses") or []:
        ended = one.get("state", {}).get("terminated") or {}
        if ended.get("exitCode") and one["name"] not in sidecars:
            name, why = one["name"], f"status {ended['exitCode']} ({ended.get('reason', 'no reason')})"
            logs = f"kubectl logs {pod['metadata']['name']} --container {name}"
            return RankLostError(f"{rank}: init container {name} ended with {why}: `{logs}` in the pod's namespace")
    return None


def _weighed(status: int) -> tuple[int, type[PbgError]]:
    """Return weight and category of an exit status."""
    category = BY_EXIT_CODE.get(status)
    if category is RankLostError:
        return 7, RankLostError
    if category is EvictedError:
        return 6, EvictedError
    if category is not None and category is not PbgError:
        return (3 if category.retryable else 2), category
    if status == ENDED:
        return 8, EvictedError
    if status > SIGNALLED:
        return 4, ResourceError
    return 5, PbgError


def category_of(status: int) -> type[PbgError]:
    """Return the category of an exit status, also that of a shell."""
    return _weighed(status)[1]


def _signal_name(status: int) -> str:
    try:
        return signal.Signals(status - SIGNALLED).name
    except ValueError:
        return f"signal {status - SIGNALLED}"


def terminated(pod: Manifest) -> Manifest:
    """Return the end of the container that runs the command.

    It is empty before that.
    """
    listed = pod.get("status", {}).get("containerStatuses") or []
    states: Manifest = next((one.get("state", {}) for one in listed if one["name"] == CONTAINER), {})
    found: Manifest = states.get("terminated") or {}
    return found


def _last_line(text: str) -> str:
    """Return the error line at a log's end, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]


def title_of(job: Manifest) -> str:
    """Return kind and name of a Job or JobSet."""
    return f"{job.get('kind', 'Job')} {job['metadata']['name']}"


def name_of(pod: Manifest) -> str:
    """Return a pod's rank, or its task where it is alone."""
    task = task_of(pod)
    return f"rank {index_of(pod)}" if task == TRAIN else task


def section_of(pod: Manifest) -> str:
    """Return the spec's section that a pod was made from."""
    task = task_of(pod)
    if task == TRAIN:
        return "launch.kubernetes"
    # An export may be named like another one's parts, so that only the command shows a part.
    command = _container(pod).get("command", ())
    is_part = task.startswith("export-") and any(each.startswith("--part=") for each in command)
    return f"launch.tasks.{task.partition('-')[0]}{'_part' if is_part else ''}"


def _container(pod: Manifest) -> Manifest:
    """Return the container that runs the command."""
    own: Manifest = next((each for each in pod["spec"]["containers"] if each.get("name") == CONTAINER), {})
    return own


def task_of(pod: Manifest) -> str:
    """Return the task of a pod."""
    return str(pod["metadata"].get("labels", {}).get(TASK, TRAIN))


def index_of(pod: Manifest) -> str:
    """Return a pod's completion index, which is its rank."""
    metadata = pod["metadata"]
    known = metadata.get("annotations", {}) | metadata.get("labels", {})
    return str(known.get(INDEX, "?"))
