"""Who is in the gang, and that everyone learns within seconds when it is broken.

Every member keeps one connection to rank 0, on which both send a beat every few seconds. A connection that ends without
a goodbye, a silence that lasts too long and a failure that a member reports are verdicts; the first one ends the gang,
and rank 0 tells everyone. A member that loses rank 0 finds the verdict itself.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

from pbg_tasks.errors import ConfigError, PbgError, RankLostError
from pbg_tasks.progress import say
from pbg_tasks.train.ranks.group.watchdog import Watchdog
from pbg_tasks.train.ranks.transport.connection import error_fields, error_of, known
from pbg_tasks.train.ranks.transport.frames import ERROR
from pbg_tasks.train.ranks.transport.wire import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from pbg_tasks.train.ranks.transport.wire import Address, Connection, Credentials

SERVICE = "heartbeat"
"""Under this name rank 0's listener offers ``MemberRegistry.serve``."""

_BEAT = 2.0  # seconds between two of a member's
_SILENCE = 20.0  # seconds
_PATIENCE = 60.0  # seconds
_LIMIT = 35.0  # seconds that a process may go on in a broken gang: with the silence before, and what ends it, 60
_FAREWELL = 5.0  # seconds in which rank 0 confirms that a member leaves


class MemberRegistry:
    """Rank 0's list of the members, where verdicts are found; an error that ends its ``with`` block is one.

    Args:
        ranks: all that are to come, rank 0 among them.
        silence: seconds that a member may say nothing.
        patience: seconds that a member may take to come after the first.

    Attributes:
        verdict: why the gang is broken; None while it is not.
    """

    def __init__(self, ranks: Iterable[int], *, silence: float = _SILENCE, patience: float = _PATIENCE) -> None:
        self.verdict: PbgError | None = None
        self._silence, self._patience = silence, patience
        self._lock = threading.Lock()
        self._awaited = set(ranks)
        self._present: dict[int, Connection] = {}
        self._closed = False
        self._timer = threading.Timer(patience, self._miss)
        self._timer.daemon = True

    def serve(self, connection: Connection) -> None:
        """Hear one member until it leaves or is lost: the service ``SERVICE``.

        Raises:
            ConfigError: a member of this rank came before, or none was to come.
        """
        peer = connection.peer
        with self._lock:
            if peer.rank not in self._awaited:
                raise ConfigError(f"{peer} came before, or is none of this gang: each process needs its own rank")
            if self._timer.ident is None:
                self._timer.start()
            self._awaited.remove(peer.rank)
            self._present[peer.rank] = connection
            verdict, closed = self.verdict, self._closed
        doing = ""
        try:
            if verdict is not None:
                connection.send(ERROR, **error_fields(verdict))
            elif closed:
                connection.send("goodbye")
            while (message := connection.receive(timeout=self._silence)).kind != "goodbye":
                if message.kind == ERROR:
                    error = error_of(message)
                    self.condemn(type(error)(f"{peer}: {error}"))
                else:
                    doing = str(message.fields.get("doing", ""))
                    connection.send("beat")
            connection.send("goodbye")
        except RankLostError as error:
            self.condemn(RankLostError(f"{error}; last heard of it: {doing}" if doing else str(error)))
            connection.fail(self.verdict or error)  # it may be silent and yet alive
        finally:
            with self._lock:
                del self._present[peer.rank]

    def condemn(self, verdict: PbgError) -> None:
        """Break the gang and tell every member why, unless it is broken or done."""
        with self._lock:
            if self.verdict is not None or self._closed:
                return
            self.verdict = verdict
            members = list(self._present.values())
        for member in members:
            with contextlib.suppress(RankLostError):
                member.send(ERROR, **error_fields(verdict))

    def close(self) -> None:
        """Let the members go that are still there: nothing breaks the gang from now on."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            members = list(self._present.values())
        for member in members:
            with contextlib.suppress(RankLostError):
                member.send("goodbye")

    def _miss(self) -> None:
        with self._lock:
            missing = sorted(self._awaited)
        if missing:
            listed = ", ".join(map(str, missing))
            self.condemn(RankLostError(f"no sign of rank {listed} for {self._patience:g} s after others had come"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            cause = known(error)
            self.condemn(type(cause)(f"rank 0: {cause}"))
        self.close()


class Membership:
    """One rank's place in the gang, rank 0's too: leaving the ``with`` block is leaving the gang.

    Args:
        address: of rank 0's listener.
        credentials: of this process.
        beat: seconds between two signs of life.
        silence: seconds that rank 0 may say nothing, or take to answer.
        limit: seconds after which the process is ended when it has not left a broken gang; None lets it hang.

    Attributes:
        broken: set once the gang is.
        verdict: why it is; None before.
        leaderless: whether it is because rank 0 is gone or silent, and so nobody can be told anything.
        doing: what this rank is at, for the others to read should it fall silent; whoever trains sets it.

    Raises:
        RankLostError: rank 0 does not answer.
        ConfigError: rank 0 is of another gang.
    """

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        *,
        beat: float = _BEAT,
        silence: float = _SILENCE,
        limit: float | None = _LIMIT,
    ) -> None:
        self.broken = threading.Event()
        self.verdict: PbgError | None = None
        self.leaderless = False
        self.doing = ""
        self._beat, self._silence = beat, silence
        self._watchdog = Watchdog(limit)
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._leaving, self._parted = threading.Event(), threading.Event()
        self._connection = connect(address, credentials, SERVICE, timeout=silence)
        for work in (self._show_life, self._hear):
            threading.Thread(target=work, name=f"membership {work.__name__}", daemon=True).start()

    def check(self) -> None:
        """Return at once unless the gang is broken.

        Raises:
            RankLostError: a rank is lost.
            PbgError: of the class that another rank failed with; the text names the rank.
        """
        if self.verdict is not None:
            raise type(self.verdict)(*self.verdict.args)

    def on_break(self, callback: Callable[[], None]) -> None:
        """Call something, in another thread, when the gang breaks; here and now if it is broken."""
        with self._lock:
            if self.verdict is None:
                self._callbacks.append(callback)
                return
        callback()

    def fail(self, error: BaseException) -> None:
        """Break the gang, unless it is: this rank cannot go on. It may yet store what it has, and has to leave."""
        if self.verdict is None:
            with contextlib.suppress(RankLostError):
                self._connection.send(ERROR, **error_fields(error))

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the gang and return when rank 0 knows, or is gone.

        Args:
            error: why this rank cannot go on, if it has not said so; None if its work is done.
        """
        if self._leaving.is_set():
            return
        if error is not None:
            self.fail(error)
        self._leaving.set()
        with contextlib.suppress(RankLostError):
            self._connection.send("goodbye")
            self._parted.wait(_FAREWELL)
        self._connection.close()
        self._watchdog.cancel()

    def _show_life(self) -> None:
        with contextlib.suppress(RankLostError):  # which the other thread gets too
            while True:
                self._connection.send("beat", doing=self.doing)
                if self._leaving.wait(self._beat):
                    return

    def _hear(self) -> None:
        try:
            while (message := self._connection.receive(timeout=self._silence)).kind != "goodbye":
                if message.kind == ERROR:
                    self._break(error_of(message))
        except PbgError as error:
            if not self._leaving.is_set():
                self.leaderless = True
                self._break(error)
        finally:
            self._parted.set()

    def _break(self, verdict: PbgError) -> None:
        with self._lock:
            if self.verdict is not None:
                return
            self._watchdog.arm(verdict)  # before anyone can react to the verdict, and hang
            self.verdict = verdict
            callbacks = list(self._callbacks)
        self.broken.set()
        say(f"the gang is broken: {verdict}")
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the others are to be called, whatever this one did
                say(f"while the gang broke: {type(error).__name__}: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error)
