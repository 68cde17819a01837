"""How processes become a gang: each knows its place, they meet, agree and form a gloo group of torch's.

The group serves to agree and to wait for each other; what is trained travels over ``wire``. Nothing here waits without
a limit: a rank that never comes is named, and a call of torch's that hangs is left behind in its thread.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from concurrent.futures import Future
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import RankLostError
from pbg_tasks.progress import say
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


class Gang:
    """The processes of one distributed training, as ``join`` makes it; the end of its ``with`` block leaves it.

    Attributes:
        place: of this process.
        credentials: what it shows to the others.
        host: the address under which they reach it.
    """

    def __init__(self, place: Place, credentials: Credentials, host: str, *, timeout: float) -> None:
        self.place, self.credentials, self.host = place, credentials, host
        self._timeout = timeout

    @classmethod
    def join(cls, place: Place, spec: str, *, token: str | None = None, timeout: float = 60.0) -> Self:
        """Meet the others and form the group.

        Args:
            place: of this process.
            spec: hash of the run spec.
            token: the gang's secret (``PBG_RUN_TOKEN``), the same for all; None: rank 0 makes one and tells the others
                through the group, so that nothing but its network keeps strangers out.
            timeout: seconds in which all have to come; later, that an exchange may take.

        Raises:
            RankLostError: some did not come, or went again.
            ConfigError: the processes do not fit together (spec, version, number or token differ, or two have one
                rank), or cannot meet where they are told to; the token is too short.
        """
        import_module("torch.distributed")  # which takes seconds that are not waiting
        if token is not None:
            Credentials(token.encode(), spec, place.rank, place.role)  # finds fault with it before anyone waits
        return _bounded(timeout + _GRACE, lambda: cls._form(place, spec, token, timeout))

    @classmethod
    def _form(cls, place: Place, spec: str, token: str | None, timeout: float) -> Self:
        from torch import distributed

        store, host = meet(place, spec, token=token, timeout=timeout)
        bind_gloo(host)
        with _losses():
            limit = timedelta(seconds=timeout)
            distributed.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=limit)
        if token is None:
            token = _share({"token": secrets.token_hex(32)})[0]["token"]
            if place.rank == 0:
                say("PBG_RUN_TOKEN is not set: the ranks trust whoever joins their group")
        return cls(place, Credentials(token.encode(), spec, place.rank, place.role), host, timeout=timeout)

    def share(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give every rank a small JSON object of each; all have to call it.

        Returns:
            One object a rank, in the order of ranks.

        Raises:
            RankLostError: a rank is gone or does not call it in time.
        """
        return _bounded(self._timeout + _GRACE, lambda: _share(document))

    def barrier(self, *, timeout: float) -> None:
        """Wait until every rank calls this.

        Raises:
            RankLostError: a rank is gone or does not call it within ``timeout`` seconds.
        """
        from torch import distributed

        def wait() -> None:
            with _losses():
                distributed.monitored_barrier(timeout=timedelta(seconds=timeout))

        _bounded(timeout + _GRACE, wait)

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
    return [json.loads(bytes(one[:length].tolist())) for one, length in zip(documents, lengths.flatten(), strict=True)]


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """Make of what torch raises when a peer is gone or late the loss of a rank."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"the group of ranks failed: {str(error).partition(chr(10))[0]}") from None


def _bounded(seconds: float, work: Callable[[], Made]) -> Made:
    """Do something in a thread, which is left behind if it takes too long; signals are handled meanwhile."""
    future: Future[Made] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is waited for
            future.set_exception(error)

    threading.Thread(target=run, name="gang", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        raise RankLostError(
            f"the group of ranks did not answer for {seconds:g} s: rank 0 or the network hangs"
        ) from None
