"""Members of the gang, and quick notice of a broken gang.

Every member keeps one connection to rank 0, on which both send a beat every few seconds. A connection that ends without
a goodbye, a silence that lasts too long and a failure that a member reports are verdicts. The first verdict ends the
gang, and rank 0 sends it to every member. A member that loses rank 0 finds the verdict itself.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

from pbg_tasks.errors import ConfigError, PbgError, RankLostError
from pbg_tasks.progress import say
from pbg_tasks.training.ranks.group.watchdog import Watchdog
from pbg_tasks.training.ranks.transport.connection import error_fields, error_of, known
from pbg_tasks.training.ranks.transport.frames import ERROR
from pbg_tasks.training.ranks.transport.wire import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pbg_tasks.training.ranks.transport.wire import Address, Connection, Credentials

SERVICE = "heartbeat"
"""Name under which rank 0's listener offers ``MemberRegistry.serve``."""

_BEAT = 2.0  # seconds between two beats of a member
_SILENCE = 20.0  # seconds
_PATIENCE = 60.0  # seconds
_LIMIT = 35.0  # seconds that a process may continue in a broken gang; with the silence before and its end, 60
_FAREWELL = 5.0  # seconds in which rank 0 confirms that a member leaves


class MemberRegistry:
    """Rank 0's registry of the members, in which verdicts are found.

    An error that ends its ``with`` block is a verdict, too.

    Args:
        ranks: all expected ranks, including rank 0.
        silence: seconds that a member may be silent.
        patience: seconds in which all members must come after the first.

    Attributes:
        verdict: error that broke the gang; None while it is not broken.
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
        """Serve one member until it leaves or is lost: the service ``SERVICE``.

        Raises:
            ConfigError: a member of this rank came before, or the rank is not expected.
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
            connection.fail(self.verdict or error)  # it may be silent and still run
        finally:
            with self._lock:
                del self._present[peer.rank]

    def condemn(self, verdict: PbgError) -> None:
        """Break the gang and send every member the verdict.

        It has no effect on a gang that is broken or closed.
        """
        with self._lock:
            if self.verdict is not None or self._closed:
                return
            self.verdict = verdict
            members = list(self._present.values())
        for member in members:
            with contextlib.suppress(RankLostError):
                member.send(ERROR, **error_fields(verdict))

    def close(self) -> None:
        """Release the members that are still present.

        Nothing breaks the gang afterwards.
        """
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None:
            cause = known(error)
            self.condemn(type(cause)(f"rank 0: {cause}"))
        self.close()


class Membership:
    """Membership of one rank, rank 0 included.

    It ends with its ``with`` block.

    Args:
        address: of rank 0's listener.
        credentials: of this process.
        beat: seconds between two beats.
        silence: seconds that rank 0 may be silent, or take to answer.
        limit: seconds after which a process that has not left a broken gang is ended; None: never.

    Attributes:
        broken: set when the gang is broken.
        verdict: error that broke it; None before.
        leaderless: whether it broke because rank 0 ended or is silent, so that no message can be sent to the others.
        doing: present work of this rank, which rank 0 reports if it falls silent; the training sets it.

    Raises:
        RankLostError: rank 0 does not answer.
        ConfigError: rank 0 belongs to another gang.
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
        for work in (self._show_life, self._receive):
            threading.Thread(target=work, name=f"membership {work.__name__}", daemon=True).start()

    def check(self) -> None:
        """Raise the verdict, if the gang is broken.

        Raises:
            RankLostError: a rank is lost.
            PbgError: another rank failed; the class is that of its error, and the text names the rank.
        """
        if self.verdict is not None:
            raise type(self.verdict)(*self.verdict.args)

    def on_break(self, callback: Callable[[], None]) -> None:
        """Call a function in another thread when the gang breaks.

        If the gang is broken, it is called at once in this thread.
        """
        with self._lock:
            if self.verdict is None:
                self._callbacks.append(callback)
                return
        callback()

    def fail(self, error: BaseException) -> None:
        """Break the gang, because this rank cannot continue.

        It has no effect on a gang that is broken. The rank may still store its work, and has to leave afterwards.
        """
        if self.verdict is None:
            with contextlib.suppress(RankLostError):
                self._connection.send(ERROR, **error_fields(error))

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the gang, and wait until rank 0 has confirmed.

        The wait also ends where rank 0 has ended.

        Args:
            error: reason why this rank cannot continue, if it is not reported yet; None if its work is done.
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
        with contextlib.suppress(RankLostError):  # which the other thread gets, too
            while True:
                self._connection.send("beat", doing=self.doing)
                if self._leaving.wait(self._beat):
                    return

    def _receive(self) -> None:
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
            self._watchdog.arm(verdict)  # before another thread can react to the verdict, and hang
            self.verdict = verdict
            callbacks = list(self._callbacks)
        self.broken.set()
        say(f"the gang is broken: {verdict}")
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the other callbacks have to be called nevertheless
                say(f"while the gang broke: {type(error).__name__}: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.leave(error)
