"""Watch of a gang's Job, one look at a time.

It serves a worker that sleeps between looks, and the triggerer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.conditions import Phase, phase
from pbg_operators.kubernetes.jobset import child_name, of_last_restart, of_set, restarts_of
from pbg_operators.kubernetes.logs import RankLogs, recorded
from pbg_operators.kubernetes.startup import overdue
from pbg_operators.kubernetes.stuck import loss, outlived
from pbg_operators.kubernetes.verdict import failure, failure_of_commands, index_of
from pbg_tasks.errors import ConflictError, EvictedError, NotFoundError, PbgError, RankLostError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pbg_operators.kubernetes.api import Cluster
    from pbg_operators.kubernetes.manifest import Manifest
    from pbg_operators.kubernetes.submission import Handle

PATIENCE_SECONDS = 900.0
"""Seconds without an answer of the API after which the task's next try takes over. The Job goes on meanwhile."""
LONGEST_PAUSE = 60.0
RECORD_EVERY = 15.0
"""Seconds between records of the positions in the logs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """End of a gang.

    Attributes:
        error: why it failed; None when it succeeded.
    """

    error: PbgError | None = None


class Watch:
    """Watch of a Job until its end, with the output of ranks.

    Args:
        cluster: of the Job.
        handle: of the Job.
        startup_seconds: how long its pods may take to start.
        interval: seconds between looks, while the API answers.
        ``say``: gets each line of the ranks.
    """

    def __init__(
        self, cluster: Cluster, handle: Handle, *, startup_seconds: int, interval: float, say: Callable[[str], None]
    ) -> None:
        self.pause = interval
        self._cluster, self._handle = cluster, handle
        self._say = say
        self._startup_seconds, self._interval = startup_seconds, interval
        self._seen: dict[str, Manifest] = {}  # kept, because an evicted pod soon disappears, and with it the reason
        self._gone: dict[str, datetime] = {}  # since when a rank that had a pod has none, or a pod is missing
        self._before: set[str] = set()  # pods whose logs an earlier watch read, and which are missing
        self._logs: RankLogs | None = None
        self._silent_since: float | None = None
        self._recorded_at = time.monotonic()
        self._recorded: dict[str, str] = {}
        self._waits = False
        self._restarts = 0

    def look(self) -> Verdict | None:
        """Look once; return None while the Job goes on.

        Then the next look is due after ``pause`` seconds.

        Raises:
            AccessError: the API refuses the credentials.
            ResourceError: it has given no answer for too long.
        """
        try:
            verdict = self._look()
        except ResourceError as error:
            self._wait_longer(error)
            return None
        self.pause, self._silent_since = self._interval, None
        return verdict

    def record(self) -> None:
        """Record the positions in the logs, for the next watch.

        They are stored at the Job. A failure costs nothing but repeated lines.
        """
        if self._logs is None or self._logs.cursors == self._recorded:
            return
        cursors = self._logs.cursors
        try:
            self._cluster.change_job(self._handle.name, self._handle.uid, manifest.logged(cursors), self._handle.kind)
        except PbgError:
            return
        self._recorded, self._recorded_at = cursors, time.monotonic()

    def _look(self) -> Verdict | None:
        job = self._job()
        if job is None:
            name, uid = self._handle.name, self._handle.uid
            return Verdict(EvictedError(f"{self._handle.kind} {name} (uid {uid}) was deleted; what it stored stays"))
        everything = self._cluster.labelled(manifest.pod_labels(self._handle.name, self._handle.uid, self._handle.kind))
        if self._handle.kind == "JobSet":
            everything = of_set(job, everything)
        self._follow_restarts(job)
        pods = of_last_restart(job, everything)
        self._seen |= {pod["metadata"]["uid"]: pod for pod in pods}
        reached = phase(job)
        self._copy_logs(job, everything, last=reached is not Phase.UNDER_WAY)
        match reached:
            case Phase.SUCCEEDED:
                return Verdict()
            case Phase.FAILED:
                return self._verdict(failure(self._failed_job(job), list(self._seen.values())))
        return None if self._suspended(job) else self._stuck(job, pods, everything)

    def _stuck(self, job: Manifest, pods: list[Manifest], everything: list[Manifest]) -> Verdict | None:
        """Delete a Job that would not end, or not start.

        A restarted gang has no pods before those of the last start have ended.
        """
        name, uid = self._handle.name, self._handle.uid
        made = self._made(pods)
        if outlived(pods, manifest.pods_of(job), self._cluster.now):
            self._say(f"{self._handle.kind} {name}: its commands have ended, other containers have not; it is deleted")
            verdict = self._verdict(failure_of_commands(f"{self._handle.kind} {name}", pods))
        elif (lost := loss(f"{self._handle.kind} {name}", pods or everything, self._cluster.now)) is not None:
            verdict = self._verdict(lost)
        elif (late := overdue(job, pods, self._startup_seconds, self._cluster.now, made)) is not None:
            verdict = Verdict(late)
        else:
            return None
        self._cluster.delete_job(name, uid, self._handle.kind)
        return verdict

    def _made(self, pods: list[Manifest]) -> int:
        """Count the pods that are there, succeeded, or may come again."""
        ended = [pod for pod in self._seen.values() if pod.get("status", {}).get("phase") == "Succeeded"]
        now, there = self._cluster.now, {index_of(pod) for pod in [*pods, *ended]}
        missed = ({index_of(pod) for pod in self._seen.values()} - there) | self._before
        self._gone = {index: self._gone.get(index, now) for index in missed}
        limit = timedelta(seconds=self._startup_seconds)
        return len(there) + sum(now - since < limit for since in self._gone.values())

    def _follow_restarts(self, job: Manifest) -> None:
        """Report restarts of a JobSet's gang.

        Ends of pods before them are no reason of a later failure.
        """
        restarts = restarts_of(job)
        if restarts > self._restarts:
            self._say(f"JobSet {self._handle.name}: the gang failed and is restarted, for the {restarts}. time")
            self._restarts = restarts
            self._seen.clear()

    def _verdict(self, error: PbgError | None) -> Verdict:
        """Return the end of a Job, given why its pods have failed.

        After a restart, a conflict may be with the gang before, which goes on where its node is lost. The task would be
        skipped for a conflict.
        """
        if self._restarts and isinstance(error, ConflictError):
            error = RankLostError(f"{error}; it may be this gang before its restart, on a node that is lost")
        return Verdict(error)

    def _failed_job(self, job: Manifest) -> Manifest:
        """Return the Job whose condition has the reason of a failure.

        For a JobSet that is the Job within, where it still exists.
        """
        if self._handle.kind == "Job":
            return job
        try:
            child = self._cluster.read("Job", child_name(self._handle.name))
        except NotFoundError:
            return job
        return child if phase(child) is Phase.FAILED else job

    def _suspended(self, job: Manifest) -> bool:
        """Return whether a Job waits to be resumed.

        Pods that end meanwhile got a signal to, and are no reason of a later failure.
        """
        waits = bool(job["spec"].get("suspend"))
        if waits and not self._waits:
            self._say(f"{self._handle.kind} {self._handle.name} is suspended; its pods start when it is resumed")
        if waits:
            self._seen.clear()
        self._waits = waits
        return waits

    def _job(self) -> Manifest | None:
        """Return the Job; None without one of that name and uid."""
        try:
            job = self._cluster.read(self._handle.kind, self._handle.name)
        except NotFoundError:
            return None
        return job if job["metadata"]["uid"] == self._handle.uid else None

    def _copy_logs(self, job: Manifest, pods: list[Manifest], *, last: bool) -> None:
        if self._logs is None:
            cursors = recorded(job)
            self._logs, self._recorded = RankLogs(self._cluster, cursors), {pod: str(at) for pod, at in cursors.items()}
            self._before = cursors.keys() - {pod["metadata"]["name"] for pod in pods}
            if cursors:
                self._say("the logs of the ranks go on where they were left; an earlier log of this task has the rest")
        for line in self._logs.step(pods, last=last):
            self._say(line)
        if time.monotonic() - self._recorded_at >= RECORD_EVERY:
            self.record()

    def _wait_longer(self, error: ResourceError) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since >= PATIENCE_SECONDS:
            raise error
        self.pause = min(self.pause * 2, LONGEST_PAUSE)
