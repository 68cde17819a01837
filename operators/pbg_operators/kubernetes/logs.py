"""Logs of all ranks as one, read in steps, each line once."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pbg_operators.kubernetes.manifest import LOGGED
from pbg_operators.kubernetes.verdict import name_of
from pbg_tasks.errors import AccessError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pbg_operators.kubernetes.api import Cluster
    from pbg_operators.kubernetes.manifest import Manifest

Instant = tuple[datetime, str]
"""Time to the second, and the digits of its fraction: nine of them, more than datetime keeps."""
LOST_SECONDS = 60.0
"""Longest time that one step waits in vain for logs. Those that it has not reached are left to the next step."""
REST = 10.0
"""Pause before a log that failed is read again, as a multiple of the time that the failure took. The log of a lost node
takes minutes to fail.
"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position up to which a pod's log has been read.

    Attributes:
        time: of the last line, as the API wrote it; empty before the first.
        lines: number of lines with that very time that have been read.
    """

    time: str = ""
    lines: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor of a text that ``str`` made."""
        time, _, lines = text.partition("/")
        return cls(time, int(lines))

    def __str__(self) -> str:
        return f"{self.time}/{self.lines}"


class RankLogs:
    """Output of a Job's pods, whichever pods it has at the time.

    Logs are read from the second of the last line on, and lines that were read before are left out. That costs a
    request a pod and step, needs no thread and survives every broken connection. When a log cannot be read, as while
    the node of its pod is unreachable, only its lines are missing.

    Args:
        cluster: of the pods.
        cursors: positions from which to continue, by pod.
    """

    def __init__(self, cluster: Cluster, cursors: Mapping[str, Cursor] | None = None) -> None:
        self._cluster = cluster
        self._cursors = dict(cursors or {})
        self._failed: dict[str, float] = {}  # time of the next attempt, by pod whose log failed last
        self._reported: set[str] = set()

    @property
    def cursors(self) -> dict[str, str]:
        """Positions from which the next reader continues, by pod."""
        return {pod: str(cursor) for pod, cursor in self._cursors.items()}

    def step(self, pods: Sequence[Manifest], *, last: bool = False) -> list[str]:
        """Return the lines printed since the last step, sorted by time.

        Each has ``[rank i]`` in front. The first time that a pod's log cannot be read, a line in front of them reports
        it.

        Args:
            pods: of the Job.
            last: whether there will be no further step, so that logs in their pause are read, too, while
                ``LOST_SECONDS`` last.
        """
        problems: list[str] = []
        fresh: list[tuple[Instant, str]] = []
        lost = 0.0
        # Logs that failed last time come last, so that they take no time from those that can be read.
        for pod in sorted(pods, key=lambda pod: (pod["metadata"]["name"] in self._failed, name_of(pod))):
            name, rank = pod["metadata"]["name"], name_of(pod)
            began = time.monotonic()
            if lost >= LOST_SECONDS or (not last and began < self._failed.get(name, began)):
                continue
            try:
                for moment, text in self._new_lines(name):
                    fresh.append((moment, f"[{rank}] {text}"))
            except (AccessError, ResourceError) as error:
                if name not in self._reported:
                    self._reported.add(name)
                    problems.append(f"the log of {rank} cannot be read: {error}; the Job goes on")
                ended = time.monotonic()
                lost += ended - began
                self._failed[name] = ended + REST * (ended - began)
            else:
                self._failed.pop(name, None)
        return problems + [text for _, text in sorted(fresh, key=lambda line: line[0])]

    def _new_lines(self, pod: str) -> Iterator[tuple[Instant, str]]:
        start = cursor = self._cursors.get(pod, Cursor())
        repeated = 0
        for line in self._cluster.log(pod, start.time or None):
            time, _, text = line.partition(" ")
            try:
                now = instant(time)
            except ValueError:  # a line without a time belongs to the one before
                continue
            if start.time and now <= instant(start.time):
                repeated += now == instant(start.time)
                if now < instant(start.time) or repeated <= start.lines:
                    continue
            cursor = Cursor(time, cursor.lines + 1 if cursor.time == time else 1)
            self._cursors[pod] = cursor
            yield now, text


def instant(text: str) -> Instant:
    """Return a time that sorts, with any offset and number of digits.

    Raises:
        ValueError: it is no time.
    """
    seconds, dot, rest = text.partition(".")
    digits = rest.rstrip("Zz").partition("+")[0].partition("-")[0] if dot else ""
    zone = rest[len(digits) :] if dot else ""
    return datetime.fromisoformat(seconds + zone).astimezone(UTC), digits.ljust(9, "0")


def recorded(job: Manifest) -> dict[str, Cursor]:
    """Return the cursors in a Job's annotation.

    There are none when the annotation cannot be read.
    """
    try:
        written = json.loads(job["metadata"]["annotations"][LOGGED])
        return {pod: Cursor.parse(text) for pod, text in written.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
