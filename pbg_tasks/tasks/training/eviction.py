"""SIGTERM as a request to a training: store the state and end.

SIGKILL follows after the grace. Python runs a signal's handler between two steps of its own, so a long call of the
native engine would delay it. The system's own handler writes the signal's number to a socket at once. A thread that
reads the socket sets the flag that the training checks, and begins to count the time.
"""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self, cast

from pbg_tasks.errors import EvictedError
from pbg_tasks.training.environment import number_of
from pbg_tasks.training.ranks.group.member import Member
from pbg_tasks.training.ranks.group.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GRACE = "PBG_GRACE_SECONDS"
"""Variable with the seconds between SIGTERM and SIGKILL."""
GRACE_SECONDS = 30
"""Default of the variable; Kubernetes' own default for a pod."""
_MARGIN_SECONDS = 6.0  # of the grace, to report and end in


class Notice:
    """Reaction to SIGTERM of one process that trains alone.

    It lasts for the length of ``taken``. Outside of ``gently`` and ``held`` SIGTERM ends the process where it is, by an
    EvictedError. Within ``gently`` it is noted, for the training to stop at its next batch and store what it has. A
    process that is still there shortly before it would be killed ends with the same status, whatever it hangs in.

    Attributes:
        member: has the flag that SIGTERM sets.
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
        """React to SIGTERM for the length of the context.

        Within another such context, that one's notice is given.

        Args:
            ends: whether the process ends with the context. Once SIGTERM came, a further one must not keep the process
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
        """Let the training react to SIGTERM for the length of the context.

        It checks the member's flag.
        """
        self._gentle = True
        try:
            self.member.check()
            yield self.member
        finally:
            self._gentle = False
            self._raised = self._raised or self.member.evicted.is_set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise the error of SIGTERM only at the end of the context.

        For imports of C++ libraries: an error that a handler raises while torch initializes itself aborts the process.

        Raises:
            EvictedError: SIGTERM came before or within the context.
        """
        with self.gently():
            yield
        self.member.check()

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
    """Make SIGTERM a request to store the state and end.

    It holds for the length of the context.
    """
    member = Member()
    with heard(member.evicted.set), on_sigterm(member.evicted.set):
        yield member


@contextmanager
def on_sigterm(act: Callable[[], None], *, stays: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Do something at SIGTERM for the length of the context.

    It is done in the main thread; in another thread the context changes nothing.

    Args:
        act: what is done.
        stays: asked at the end of the context whether ``act`` is to be called for later signals too.
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
    """Do something at SIGTERM in a thread of its own.

    It holds for the length of the context and works even while the main thread is in a long call. Python's own handler,
    which this does not replace, has to be one that does not end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiving, sending = socket.socketpair()
    sending.setblocking(False)

    def listen() -> None:
        while number := receiving.recv(1):
            if number[0] == signal.SIGTERM:
                act()

    with receiving, sending:
        before = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=listen, name="sigterm", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            sending.shutdown(socket.SHUT_WR)
            thread.join()


def end_at_once() -> None:
    """End where the main thread is.

    Raises:
        EvictedError: always.
    """
    raise EvictedError("told to end (SIGTERM) outside of training; what is stored stays")
