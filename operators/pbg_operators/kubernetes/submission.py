"""Submission of a gang's Job exactly once.

Restarts of the gang's task find the Job again.
"""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.conditions import Phase, phase
from pbg_operators.kubernetes.jobset import jobset
from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError, ResourceError
from pbg_tasks.training.ranks.transport.certificates import make_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_operators.kubernetes.api import Cluster
    from pbg_operators.kubernetes.manifest import Gang, Manifest


QUEUED = dt.timedelta(days=7)
"""Time that certificates are good for beyond a gang's deadline, because it may wait for Kueue first."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Identity of the Job that a task waits for.

    A Job with the same name and another uid is another Job.

    Attributes:
        name: of the Job.
        uid: of the Job.
        attempt: the gang's number among those of one run.
        kind: ``Job`` or ``JobSet``.
    """

    name: str
    uid: str
    attempt: int
    kind: str = "Job"

    def to_json(self) -> dict[str, Any]:
        """Return the form of the handle for the task state.

        That of a Job lacks the kind, as it did before there were JobSets.
        """
        return {name: value for name, value in asdict(self).items() if (name, value) != ("kind", "Job")}


def submit(
    cluster: Cluster, gang: Gang, recorded: Handle | None, values: Mapping[str, str], record: Callable[[Handle], None]
) -> Handle:
    """Return the Job of a gang, under way or succeeded.

    It is made now if need be, with all objects that its pods need. A Job that failed earlier does not count: the next
    attempt has a name of its own. Names follow from run and attempt, so that after a try that was killed before it
    could record its Job, the next one finds the Job under its name.

    Args:
        cluster: in which the Job is made.
        gang: of the Job.
        recorded: the handle an earlier try of this task recorded.
        values: secret environment variables of the pods, beside the gang's token.
        record: gets the handle before any pod starts.

    Raises:
        ConfigError: the Job of that name trains another run.
        ConflictError: it is another task's and under way.
        ResourceError: the Job was deleted meanwhile, or the cluster is busy.
    """
    job, attempt = _going_on(cluster, gang, recorded)
    while job is None:
        attempt += 1
        job = _create_or_adopt(cluster, gang, attempt)
    handle = Handle(job["metadata"]["name"], job["metadata"]["uid"], attempt, gang.kind)
    record(handle)
    try:
        _complete(cluster, gang, handle, job, values)
    except NotFoundError as error:  # a later try makes the next Job
        raise ResourceError(f"{gang.kind} {handle.name}: it, or an object of it, is gone: {error}") from None
    return handle


def _going_on(cluster: Cluster, gang: Gang, recorded: Handle | None) -> tuple[Manifest | None, int]:
    """Return the recorded Job, if it still goes on, and its attempt.

    The spec may have another launcher since, and a task that was cleared together with its plan another run, while it
    keeps what it recorded. A Job of those does not count.
    """
    if recorded is None or recorded.kind != gang.kind:
        return None, 0
    try:
        job = cluster.read(recorded.kind, recorded.name)
    except NotFoundError:
        return None, recorded.attempt
    there = job["metadata"]
    if there.get("annotations", {}).get(manifest.RUN) != gang.run:
        return None, 0
    goes_on = there["uid"] == recorded.uid and phase(job) is not Phase.FAILED
    return job if goes_on else None, recorded.attempt


def _create_or_adopt(cluster: Cluster, gang: Gang, attempt: int) -> Manifest | None:
    """Return the Job of an attempt.

    None is returned when it has failed or is being removed.
    """
    wanted = manifest.job(gang, attempt) if gang.kind == "Job" else jobset(gang, attempt)
    name = wanted["metadata"]["name"]
    try:
        return cluster.create(wanted)
    except ConflictError:
        pass
    except NotFoundError as error:
        hint = "" if gang.kind == "Job" else "; install JobSet (https://jobset.sigs.k8s.io), or use launcher kubernetes"
        raise ConfigError(f"{error}{hint}") from None
    try:
        job = cluster.read(gang.kind, name)
    except NotFoundError:  # deleted in between: objects of it may still have its name
        return None
    notes = job["metadata"].get("annotations", {})
    if notes.get(manifest.RUN) != gang.run:
        what = "a training" if gang.task == manifest.TRAIN else f"task {gang.task}"
        raise ConfigError(f"{gang.kind} {name} in namespace {cluster.namespace} is not {what} of {gang.run}; delete it")
    if phase(job) is Phase.FAILED or "deletionTimestamp" in job["metadata"]:
        return None
    if notes.get(manifest.OWNER) != gang.owner and phase(job) is Phase.UNDER_WAY:
        raise ConflictError(
            f"{gang.kind} {name} in namespace {cluster.namespace} trains {gang.run} for {notes.get(manifest.OWNER)}"
        )
    return job


def _complete(cluster: Cluster, gang: Gang, handle: Handle, job: Manifest, values: Mapping[str, str]) -> None:
    """Make missing objects of a Job, and let its pods start.

    Kueue may have resumed the Job of a try that ended before it had made them.
    """
    name, uid = handle.name, handle.uid
    waits, queued = job["spec"].get("suspend"), gang.launch.kueue_queue is not None
    if phase(job) is not Phase.UNDER_WAY or not (waits or queued):
        return
    _ensure(cluster, manifest.secret(name, uid, {**values, **_credentials(gang)}, gang.kind), uid)
    if gang.meets and gang.kind == "Job":
        _ensure(cluster, manifest.service(name, uid), uid)
    if gang.launch.network_policy:
        _ensure(cluster, manifest.network_policy(name, uid, gang.kind), uid)
    if not queued:  # else Kueue resumes the Job when there is room for all of its pods
        try:
            cluster.change_job(name, uid, manifest.resumed(), gang.kind)
        except ConflictError as error:  # not by another training: a Job of this name is being removed and made again
            raise ResourceError(f"{gang.kind} {name} could not be resumed: {error}") from None


def _credentials(gang: Gang) -> dict[str, str]:
    """Return the variables with which a gang's pods prove themselves.

    Certificates outlast all of the gang's restarts, and a week in a queue before them.
    """
    if not gang.meets:
        return {}
    token = {"PBG_RUN_TOKEN": secrets.token_hex(32)}
    if not gang.launch.certificates:
        return token
    lifetime = dt.timedelta(seconds=gang.launch.deadline_seconds * (gang.restarts + 1)) + QUEUED
    return {**token, **make_certificates(lifetime).environment()}


def _ensure(cluster: Cluster, wanted: Manifest, uid: str) -> None:
    """Create an object of a Job unless it exists.

    Raises:
        ResourceError: that of a deleted Job still exists, and the cluster removes it soon; or a quota is used up.
    """
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    try:
        cluster.create(wanted)
    except (ConflictError, ResourceError) as error:  # a quota that is used up refuses also what is there
        try:
            found = cluster.read(kind, name)
        except NotFoundError:
            raise ResourceError(str(error)) from None
        if uid not in {owner["uid"] for owner in found["metadata"].get("ownerReferences", [])}:
            raise ResourceError(f"{kind} {name} belongs to something else than its Job; is it being removed?") from None
