"""How processes become a gang: each knows its place, they meet, agree and form a gloo group of torch's.

The group serves to agree and to wait for each other; what is trained travels over ``wire``. Nothing here waits without
a limit: a rank that never comes is named, and a call of torch's that hangs is left behind in its thread.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import RankLostError
from pbg_tasks.progress import say
from pbg_tasks.train.ranks.frames import parse_object
from pbg_tasks.train.ranks.handshake import Credentials
from pbg_tasks.train.ranks.host import bind_gloo
from pbg_tasks.train.ranks.place import Place
from pbg_tasks.train.ranks.rendezvous import meet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

__all__ = ["Gang", "Place"]

Made = TypeVar("Made")

_GRACE = 5.0  # seconds that torch may take beyond what it was given
_SILENCE = 40.0  # seconds without any progress once all are there, or of the place where they meet before
_LOOK_SECONDS = 0.1  # between two looks at whether it is of any use to wait


class Gang:
    """The processes of one distributed training, as ``join`` makes it; the end of its ``with`` block leaves it.

    Attributes:
        place: of this process.
        credentials: what it shows to the others.
        host: the address under which they reach it.
    """

    def __init__(self, place: Place, credentials: Credentials, host: str) -> None:
        self.place, self.credentials, self.host = place, credentials, host

    @classmethod
    def join(cls, place: Place, spec: str, *, token: str | None = None, timeout: float = 60.0) -> Self:
        """Meet the others and form the group.

        Args:
            place: of this process.
            spec: hash of the run spec.
            token: the gang's secret (``PBG_RUN_TOKEN``), the same for all; None: rank 0 makes one and tells the others
                through the group, so that nothing but its network keeps strangers out.
            timeout: seconds in which all have to come.

        Raises:
            RankLostError: some did not come, or went again, or rank 0 is silent.
            ConfigError: the processes do not fit together (spec, version, number or token differ, or two have one
                rank), or cannot meet where they are told to; the token is too short.
        """
        import_module("torch.distributed")  # which takes seconds that are not waiting
        if token is not None:
            Credentials(token.encode(), spec, place.rank, place.role)  # finds fault with it before anyone waits
        pulse = _Pulse(place.meeting_point)
        work = partial(cls._form, place, spec, token, timeout, pulse)
        return _bounded(timeout + _SILENCE + _GRACE, work, pulse.check)

    @classmethod
    def _form(cls, place: Place, spec: str, token: str | None, timeout: float, pulse: _Pulse) -> Self:
        from torch import distributed

        store, host = meet(place, spec, token=token, timeout=timeout, beat=pulse.beat)
        bind_gloo(host)
        with _losses():
            limit = timedelta(seconds=_SILENCE)
            distributed.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=limit)
        if token is None:
            token = _share({"token": secrets.token_hex(32)})[0]["token"]
            if place.rank == 0:
                say("PBG_RUN_TOKEN is not set: the ranks trust whoever joins their group")
        return cls(place, Credentials(token.encode(), spec, place.rank, place.role), host)

    def share(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give every rank a small JSON object of each; all have to call it at about the same time.

        Returns:
            One object a rank, in the order of ranks.

        Raises:
            RankLostError: a rank is gone or does not call it in time.
        """
        return _bounded(_SILENCE + _GRACE, lambda: _share(document))

    def barrier(self, *, timeout: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until every rank calls this.

        Args:
            timeout: seconds in which all have to.
            check: raises, when waiting has become useless.

        Raises:
            RankLostError: a rank is gone or does not call it in time.
        """
        from torch import distributed

        def meet_again() -> None:
            with _losses():
                distributed.monitored_barrier(timeout=timedelta(seconds=timeout))

        _bounded(timeout + _GRACE, meet_again, check)

    def close(self) -> None:
        """Leave the group, whatever became of the others."""
        from torch import distributed

        with contextlib.suppress(RankLostError, ValueError, AssertionError):
            _bounded(_GRACE, distributed.destroy_process_group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _share(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    import torch
    from torch import distributed

    own = torch.frombuffer(bytearray(canonical_json(document)), dtype=torch.uint8)
    size = distributed.get_world_size()
    with _losses():
        lengths = torch.empty(size, 1, dtype=torch.int64)
        distributed.all_gather(list(lengths), torch.tensor([len(own)]))
        longest = int(lengths.max())
        documents = torch.empty(size, longest, dtype=torch.uint8)
        distributed.all_gather(list(documents), torch.nn.functional.pad(own, (0, longest - len(own))))
    said = [bytes(one[:length].tolist()) for one, length in zip(documents, lengths.flatten(), strict=True)]
    try:
        return [parse_object(each) for each in said]
    except ValueError as error:
        raise RankLostError(f"the group of ranks failed: {error}") from None


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """Make of what torch raises when a peer is gone or late the loss of a rank."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"the group of ranks failed: {str(error).partition(chr(10))[0]}") from None


class _Pulse:
    """When the place where ranks meet last answered; a stopped rank 0 takes connections and says nothing."""

    def __init__(self, where: str) -> None:
        self._where, self._last = where, time.monotonic()

    def beat(self) -> None:
        self._last = time.monotonic()

    def check(self) -> None:
        if time.monotonic() - self._last > _SILENCE + _GRACE:  # torch's own limits come first, and say more
            raise RankLostError(f"rank 0, or what it shares at {self._where}, does not answer for {_SILENCE:g} s")


def _bounded(seconds: float, work: Callable[[], Made], check: Callable[[], None] = lambda: None) -> Made:
    """Do something in a thread, which is left behind if it takes too long; signals are handled meanwhile."""
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
