"""Membership of this process in its gang.

It ends by a signal, or by the failure of another rank.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pbg_tasks.errors import EvictedError
from pbg_tasks.training.ranks.transport.connection import known

if TYPE_CHECKING:
    from pbg_tasks.training.ranks.group.member_registry import Membership


class Member:
    """State of this rank's membership: whether it has to stop, and why.

    Attributes:
        evicted: set by a signal's handler, when the process has to end.
        doing: text that is reported to the others if this rank is lost.
    """

    def __init__(self) -> None:
        self.evicted = threading.Event()
        self._membership: Membership | None = None

    def join(self, membership: Membership) -> None:
        """Join a gang.

        Before, and without a gang, no other process can break it.
        """
        self._membership = membership

    @property
    def doing(self) -> str:
        """Present work of this rank."""
        return "" if self._membership is None else self._membership.doing

    @doing.setter
    def doing(self, text: str) -> None:
        if self._membership is not None:
            self._membership.doing = text

    def stopping(self) -> bool:
        """Return whether to stop at the next batch."""
        return self.evicted.is_set() or (self._membership is not None and self._membership.broken.is_set())

    def check(self) -> None:
        """Raise the reason to stop, if there is one.

        Raises:
            EvictedError: this process received SIGTERM.
            PbgError: the gang is broken; the class is that of the error that broke it.
        """
        if self.evicted.is_set():
            raise EvictedError("told to end (SIGTERM); what was trained is stored, the next start goes on from there")
        if self._membership is not None:
            self._membership.check()

    def fail(self, error: BaseException) -> None:
        """Report to the others that this rank fails, and why.

        The first report is the one that counts.
        """
        if self._membership is not None:
            self._membership.fail(known(error))


class ThreadMember(Member):
    """Membership that all threads of a gang in one process share.

    Args:
        evicted: set by a signal's handler, when the process has to end.
    """

    def __init__(self, evicted: threading.Event) -> None:
        super().__init__()
        self.evicted = evicted
        self._verdict: BaseException | None = None
        self._lock = threading.Lock()

    def stopping(self) -> bool:
        """Return whether to stop at the next batch."""
        return self._verdict is not None or super().stopping()

    def check(self) -> None:
        """Raise the reason to stop, if there is one.

        Raises:
            EvictedError: the process received SIGTERM.
            BaseException: the error of the thread that failed; a foreign one has its meaning where the command ends.
        """
        super().check()
        if self._verdict is not None:
            raise self._verdict

    def fail(self, error: BaseException) -> None:
        """Report that a thread fails, and why; the first report counts."""
        with self._lock:
            if self._verdict is None:
                self._verdict = error
