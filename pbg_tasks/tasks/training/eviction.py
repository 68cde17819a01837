"""SIGTERM to a process that trains: a request to store what there is and end, before SIGKILL follows.

Python runs a signal's handler between two steps of its own, so a long call of the native engine would delay it. The
system's own handler writes the signal's number to a socket at once, and a thread that reads it sets what the training
looks at, and begins to count the time.
"""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self, cast

from pbg_tasks.errors import EvictedError
from pbg_tasks.train.environment import number_of
from pbg_tasks.train.ranks.group.member import Member
from pbg_tasks.train.ranks.group.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GRACE = "PBG_GRACE_SECONDS"
"""Variable that says how many seconds after SIGTERM a process is killed."""
GRACE_SECONDS = 30
"""Without the variable; it is what Kubernetes gives a pod."""
_MARGIN_SECONDS = 6.0  # of the grace, to report and end in


class Notice:
    """What SIGTERM means to one process that trains alone, for the length of ``taken``.

    Outside of ``gently`` it ends the process where it is, by an EvictedError. Within, it is noted, for the training to
    stop at its next batch and store what it has. A process that is still there shortly before it would be killed ends
    with the same status, whatever it hangs in.

    Attributes:
        member: knows whether the process was told to end.
    """

    def __init__(self) -> None:
        self.member = Member()
        grace = number_of(GRACE)
        limit = max((GRACE_SECONDS if grace is None else grace) - _MARGIN_SECONDS, 1.0)
        self._watchdog = Watchdog(limit, since="it was told to end")
        self._once = threading.Lock()
        self._gentle = self._raised = False

    @classmethod
    @contextmanager
    def taken(cls, *, ends: bool = False) -> Iterator[Self]:
        """Heed SIGTERM for the length of the context; within another one, give that.

        Args:
            ends: whether the process ends with the context. Once it was told to, a further SIGTERM must not keep it
                from ending with the status of an eviction.

        Raises:
            EvictedError: SIGTERM came before, and its error got lost: a library may catch every error, as of an import.
        """
        outer = _active.get()
        if outer is not None:
            outer.member.check()
            yield cast("Self", outer)
            return
        notice = cls()
        token = _active.set(notice)
        try:
            with heard(notice._note), on_sigterm(notice._act, stays=lambda: ends and notice.member.evicted.is_set()):
                yield notice
        finally:
            _active.reset(token)
            notice._watchdog.cancel()

    @contextmanager
    def gently(self) -> Iterator[Member]:
        """Let the training find out by itself, from the member, for the length of the context."""
        self._gentle = True
        try:
            self.member.check()
            yield self.member
        finally:
            self._gentle = False
            self._raised = self._raised or self.member.evicted.is_set()

    def _note(self) -> None:
        self.member.evicted.set()
        if self._once.acquire(blocking=False):
            self._watchdog.arm(EvictedError("told to end (SIGTERM); what is committed or recorded stays"))

    def _act(self) -> None:
        self._note()
        if not (self._gentle or self._raised):
            self._raised = True  # a second one must not interrupt what the first one's error does
            end_at_once()


_active: ContextVar[Notice | None] = ContextVar("notice", default=None)


@contextmanager
def evictable() -> Iterator[Member]:
    """Let SIGTERM be a request to store what there is and end, for the length of the context."""
    member = Member()
    with heard(member.evicted.set), on_sigterm(member.evicted.set):
        yield member


@contextmanager
def on_sigterm(act: Callable[[], None], *, stays: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Do something at SIGTERM, in the main thread, for the length of the context; elsewhere nothing is changed.

    Args:
        act: what is done.
        stays: asked at the end of the context whether it goes on being done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        if not stays():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def heard(act: Callable[[], None]) -> Iterator[None]:
    """Do something at SIGTERM in another thread, even while the main thread is in a long call, for the same length.

    Python's own handler, which this does not replace, has to be one that does not end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listening, telling = socket.socketpair()
    telling.setblocking(False)

    def listen() -> None:
        while number := listening.recv(1):
            if number[0] == signal.SIGTERM:
                act()

    with listening, telling:
        before = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=listen, name="sigterm", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            telling.shutdown(socket.SHUT_WR)
            thread.join()


def end_at_once() -> None:
    """End where the main thread is.

    Raises:
        EvictedError: always.
    """
    raise EvictedError("told to end (SIGTERM) outside of training; what is stored stays")
