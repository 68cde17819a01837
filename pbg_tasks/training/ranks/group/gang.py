"""The gang of a distributed training.

Its processes know their ranks, meet, and agree. They agree and wait for each other in the store where they meet;
partitions and parameters are exchanged over ``wire``. No process group of torch is formed, because gloo listens at a
port of its own and admits every process that connects. Every wait has a limit: a rank that never comes is named, and a
call of torch that hangs is abandoned in its thread.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import ConfigError, RankLostError
from pbg_tasks.progress import say
from pbg_tasks.training.ranks.group.rank_env import RankEnv
from pbg_tasks.training.ranks.group.rendezvous import meet
from pbg_tasks.training.ranks.transport.frames import parse_object
from pbg_tasks.training.ranks.transport.handshake import Credentials
from pbg_tasks.training.ranks.transport.host import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's manual documents it

    from pbg_tasks.training.ranks.transport.certificates import Certificates

__all__ = ["Gang", "RankEnv"]

Made = TypeVar("Made")

_GRACE = 5.0  # seconds that torch may take beyond its own limit
_SILENCE = 40.0  # seconds without an answer of the meeting point, or without progress after all have come
_PARTING_SECONDS = 3.0  # in which the others can read a round, before rank 0 may end the store
_PROOF = 64  # hexadecimal digits of a SHA-256
_LOOK_SECONDS = 0.1  # between two checks of a wait


class Gang:
    """The processes of one distributed training.

    ``join`` makes it.

    Args:
        env: of this process.
        store: store with the messages that the processes exchange while they wait for each other.
        host: the address under which the others reach this process.
        secret: the gang's token, which authenticates these messages; empty where it is not known yet.

    Attributes:
        env: of this process.
        host: the address under which the others reach this process.
        credentials: proof of membership for connections to the others.
    """

    credentials: Credentials

    def __init__(self, env: RankEnv, store: Store, host: str, secret: str = "") -> None:
        self.env, self.host = env, host
        self._store, self._secret = store, secret.encode()
        self._rounds = 0

    @classmethod
    def join(
        cls,
        env: RankEnv,
        spec: str,
        *,
        token: str | None = None,
        certificates: Certificates | None = None,
        timeout: float = 60.0,
    ) -> Self:
        """Meet the other processes.

        Args:
            env: of this process.
            spec: hash of the run spec.
            token: the gang's secret (``PBG_RUN_TOKEN``), the same for all; None: rank 0 draws one and shares it at the
                meeting point, so that only the network keeps other processes out.
            certificates: with which the processes encrypt their connections; None: they do not.
            timeout: seconds in which all must come.

        Raises:
            RankLostError: a rank did not come, or ended again, or rank 0 is silent.
            ConfigError: the processes do not fit together (spec, version, number or token differ, or two have one
                rank), or cannot meet at the configured place; the token is too short, or missing beside certificates.
        """
        import_module("torch.distributed")  # importing it takes seconds that must not count as waiting
        if token is None and certificates is not None:
            raise ConfigError(
                "PBG_RUN_TOKEN: not set, and without it the ranks' token would travel unencrypted; set the same text "
                "on all machines, as made by `openssl rand -hex 32`"
            )
        if token is not None:
            Credentials(token.encode(), spec, env.rank, env.role)  # checks it before any process waits
        pulse = _Pulse(env.meeting_point)
        work = partial(cls._form, env, spec, token, certificates, timeout, pulse)
        return _bounded(timeout + _SILENCE + _GRACE, work, pulse.check)

    @classmethod
    def _form(
        cls,
        env: RankEnv,
        spec: str,
        token: str | None,
        certificates: Certificates | None,
        timeout: float,
        pulse: _Pulse,
    ) -> Self:
        encrypted = certificates is not None
        met = meet(env, spec, token=token, encrypted=encrypted, timeout=timeout, beat=pulse.beat)
        gang = cls(env, *met, token or "")
        if token is None:
            token = gang._round({"token": secrets.token_hex(32)}, _SILENCE)[0]["token"]
            if env.rank == 0:
                say("PBG_RUN_TOKEN is not set: the ranks trust every process that reaches the place where they meet")
        if env.rank == 0 and encrypted:
            say("rank_tls: the ranks show each other certificates, and what they send is encrypted")
        elif env.rank == 0 and not is_loopback(gang.host):
            say("rank_tls is off: what the ranks send each other can be read on their network")
        gang.credentials = Credentials(str(token).encode(), spec, env.rank, env.role, certificates)
        return gang

    def share(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Exchange a small JSON object among all ranks.

        All ranks have to call it at about the same time.

        Returns:
            The object of each rank, in the order of ranks.

        Raises:
            RankLostError: a rank has ended or does not call it in time.
        """
        return _bounded(_SILENCE + _GRACE, lambda: self._round(document, _SILENCE))

    def barrier(self, *, timeout: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until every rank calls this.

        Args:
            timeout: seconds in which all must call it.
            check: called meanwhile; it raises an error when waiting has become useless.

        Raises:
            RankLostError: a rank has ended or does not call it in time.
        """
        _bounded(timeout + _GRACE, lambda: self._round({}, timeout), check)

    def _round(self, document: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
        """Store an object, and return those of all ranks.

        It waits until all have come to this round. The objects are in the order of ranks.
        """
        number, self._rounds = self._rounds, self._rounds + 1
        keys = [f"rounds/{number}/{rank}" for rank in range(self.env.size)]
        try:
            own, text = keys[self.env.rank], canonical_json(document).decode()
            self._store.set(own, self._proof(own, text) + text)
            try:
                self._store.wait(keys, timedelta(seconds=seconds))
            except RuntimeError:
                late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                if not late:
                    raise
                ranks = ", ".join(map(str, late))
                raise RankLostError(f"no message of rank {ranks} for {seconds:g} s: see how it ended") from None
            documents = [self._read(key) for key in keys]
            self._part(number)
        except RuntimeError as error:  # from torch
            reason = str(error).partition("\n")[0]
            where = self.env.meeting_point
            raise RankLostError(f"rank 0, or what it shares at {where}, is gone: {reason}") from None
        except ValueError as error:
            raise RankLostError(f"what the ranks share at {self.env.meeting_point} is damaged: {error}") from None
        return documents

    def _proof(self, key: str, text: str) -> str:
        """Return the HMAC of a message and its key."""
        return hmac.digest(self._secret, f"{key} {text}".encode(), "sha256").hex()

    def _read(self, key: str) -> dict[str, Any]:
        stored = self._store.get(key).decode("utf-8", "replace")
        proof, text = stored[:_PROOF], stored[_PROOF:]
        if not hmac.compare_digest(proof.encode(), self._proof(key, text).encode()):
            raise ValueError(f"{key} is not of a rank with this token; does another program write there?")
        return parse_object(text.encode())

    def _part(self, number: int) -> None:
        """Let rank 0 continue after the others have read.

        The store ends with rank 0.
        """
        key = f"rounds/{number}/read"
        self._store.add(key, 1)
        deadline = time.monotonic() + _PARTING_SECONDS
        while self.env.rank == 0 and self._store.add(key, 0) < self.env.size and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS / 10)


class _Pulse:
    """Time of the last answer from the meeting point.

    A stopped rank 0 accepts connections and sends nothing.
    """

    def __init__(self, where: str) -> None:
        self._where, self._last = where, time.monotonic()

    def beat(self) -> None:
        self._last = time.monotonic()

    def check(self) -> None:
        if time.monotonic() - self._last > _SILENCE + _GRACE:  # torch's own limits come first, and have better messages
            raise RankLostError(f"rank 0, or what it shares at {self._where}, does not answer for {_SILENCE:g} s")


def _bounded(seconds: float, work: Callable[[], Made], check: Callable[[], None] = lambda: None) -> Made:
    """Run a function in a thread for a limited time.

    A thread that takes longer is abandoned. Signals are handled meanwhile.
    """
    future: Future[Made] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is waited for
            future.set_exception(error)

    threading.Thread(target=run, name="gang", daemon=True).start()
    deadline = time.monotonic() + seconds
    while not wait([future], _LOOK_SECONDS).done:
        check()
        if time.monotonic() > deadline:
            raise RankLostError(f"the group of ranks did not answer for {seconds:g} s: rank 0 or the network hangs")
    return future.result()
