"""Meeting point of a gang's processes, in a store of torch.

Each process stores its own settings there and waits for the others. Settings that have to be equal are compared before
a group is formed, so that every process reports a wrong spec, version or number of processes at once, where a group of
torch would hang. Processes that do not come are named.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, get_type_hints
from urllib.parse import urlsplit

from pbg_tasks import __version__
from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import ConfigError, RankLostError
from pbg_tasks.progress import human_seconds, say
from pbg_tasks.training.ranks.group.rank_env import ENVIRONMENT
from pbg_tasks.training.ranks.transport.certificates import VARIABLES
from pbg_tasks.training.ranks.transport.frames import parse_object
from pbg_tasks.training.ranks.transport.host import common_host, is_loopback, own_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's manual documents it

    from pbg_tasks.training.ranks.group.rank_env import RankEnv
    from pbg_tasks.training.ranks.transport.wire import Address

_VERSION = __version__.partition("+")[0]  # not the commit or day of a build, in which equal sources may differ
_QUIET_SECONDS = 10.0  # of waiting, before a line about it
_LOOK_SECONDS = 0.05  # between two looks at the arrivals
_PARTING_SECONDS = 3.0  # in which the present processes can read a refusal
_PORT_SECONDS = 5.0  # in which the port of a gang that has just ended becomes free
_CALL_SECONDS = 1.0  # for one attempt to reach rank 0


class Arrival(NamedTuple):
    """Settings that each process stores at the meeting point.

    Attributes:
        version: version of this package, without its local part.
        spec: hash of all that the processes must have in common, such as the run spec.
        world: number of trainers.
        servers: number of partition servers.
        token: digest that differs between run tokens without revealing them; empty where there is none.
        encrypted: whether the process has certificates.
        host: the address under which this process can be reached.
    """

    version: str
    spec: str
    world: int
    servers: int
    token: str
    encrypted: bool
    host: str

    def difference(self, other: Arrival) -> str:
        """Return a difference that must not be, with its repair.

        This process's value comes first. The text is empty if there is none.
        """
        if self.version != other.version:
            return f"pbg_tasks {self.version} and {other.version}: install one version everywhere"
        if self.spec != other.spec:
            return (
                f"different runs, configs, seeds or edges ({self.spec:.12} and {other.spec:.12}): start all of them "
                "with the same; `pbg config` prints a config in full"
            )
        if (self.world, self.servers) != (other.world, other.servers):
            return (
                f"{self.world} trainers with {self.servers} partition servers, and {other.world} with {other.servers}: "
                "set the same WORLD_SIZE, or num_machines, everywhere"
            )
        if self.token != other.token:
            return "different run tokens: set the same PBG_RUN_TOKEN everywhere, or nowhere"
        if self.encrypted != other.encrypted:
            return f"certificates in only one of them: set {', '.join(VARIABLES.values())} everywhere, or nowhere"
        return ""


def meet(
    env: RankEnv, spec: str, *, token: str | None, encrypted: bool, timeout: float, beat: Callable[[], None]
) -> tuple[Store, str]:
    """Wait until all processes have come and agree.

    Args:
        env: of this process.
        spec: hash of the run spec.
        token: the gang's secret.
        encrypted: whether this process has certificates.
        timeout: seconds in which all must come.
        beat: called repeatedly, unless a call of torch hangs.

    Returns:
        A store for the group, and the address under which the others reach this process.

    Raises:
        ConfigError: the processes do not fit together, or cannot meet at the configured place.
        RankLostError: a process has not come within ``timeout`` seconds.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    deadline = time.monotonic() + timeout
    tag = "" if token is None else hashlib.sha256(b"pbg_tasks run token " + token.encode()).hexdigest()[:16]
    try:
        store = _open(env, tag, deadline, beat)
        host = own_host(env.master[0] if env.master else None)
        own = Arrival(_VERSION, spec, env.world, env.servers, tag, encrypted, host)
        others = _exchange_arrivals(store, env, own, deadline, timeout, beat)
    except RuntimeError as error:  # from torch
        reason = str(error).partition("\n")[0]
        raise RankLostError(f"rank 0, or what it shares at {env.meeting_point}, is gone: {reason}") from None
    return PrefixStore("group", store), common_host(host, [other.host for other in others])


class _Waiting:
    """Line about a wait that is long."""

    def __init__(self, deadline: float) -> None:
        self._since, self._deadline = time.monotonic(), deadline

    def note(self, awaited: str) -> None:
        """Print the line, once."""
        if time.monotonic() - self._since > _QUIET_SECONDS:
            self._since = self._deadline
            say(f"waiting for {awaited}, for up to {human_seconds(self._deadline - time.monotonic())} more")


def _open(env: RankEnv, tag: str, deadline: float, beat: Callable[[], None]) -> Store:
    """Open the shared store.

    Rank 0 makes it, unless torchrun has made one.
    """
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]

    master = env.master
    if master is None:
        path = Path(urlsplit(env.init_method).path)
        if not path.parent.is_dir():
            raise ConfigError(f"distributed_init_method: {env.init_method}: there is no directory {path.parent}")
        # The file of a gang that was killed stays; a gang with another token has other keys in it.
        return PrefixStore(tag, FileStore(str(path), env.size))
    ready_made = env.init_method == ENVIRONMENT and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "") if ready_made else ""
    if env.rank == 0 and not ready_made:
        return PrefixStore(attempt, _tcp_store(master, deadline, listener=_listen(master, deadline)))
    _await_master(master, deadline, beat)
    return PrefixStore(attempt, _tcp_store(master, deadline))


def _tcp_store(master: Address, deadline: float, listener: socket.socket | None = None) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        *master,
        is_master=listener is not None,
        timeout=timedelta(seconds=max(deadline - time.monotonic(), _CALL_SECONDS)),
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _listen(master: Address, deadline: float) -> socket.socket:
    """Bind the port of the store.

    It is bound on the loopback interface alone where the configured address is one of that interface.
    """
    host, port = master
    local = is_loopback(host)
    last = min(deadline, time.monotonic() + _PORT_SECONDS)
    while True:
        try:
            if local or not socket.has_dualstack_ipv6():
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                return socket.create_server((host if local else "", port), family=family)
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if time.monotonic() > last:
                raise ConfigError(
                    f"port {port} for the ranks to meet: {error.strerror}; another process of this machine has it, "
                    "perhaps a second rank 0"
                ) from None
            time.sleep(_LOOK_SECONDS)


def _await_master(master: Address, deadline: float, beat: Callable[[], None]) -> None:
    """Wait until rank 0 accepts connections.

    Its name may be unknown for a while, and its port closed. Torch would log each failure.
    """
    waiting = _Waiting(deadline)
    while True:
        beat()
        waiting.note(f"rank 0 to answer at {master[0]}:{master[1]}")
        try:
            socket.create_connection(master, timeout=_CALL_SECONDS).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RankLostError(
                    f"rank 0 does not answer at {master[0]}:{master[1]} ({error.strerror or error}): is it running, "
                    "and are MASTER_ADDR and MASTER_PORT, or distributed_init_method, right?"
                ) from None
            time.sleep(_LOOK_SECONDS)
        else:
            return


def _exchange_arrivals(
    store: Store, env: RankEnv, own: Arrival, deadline: float, timeout: float, beat: Callable[[], None]
) -> list[Arrival]:
    """Store this process's settings, and return those of the others."""
    store.add("came", 1)
    if store.add(f"claims/{env.rank}", 1) > 1:
        if env.master and store.check([f"arrivals/{rank}" for rank in range(env.size)]):
            raise RankLostError(
                f"the gang at {env.meeting_point} has begun with another rank {env.rank}: start again once that gang "
                "has ended, as it does within a minute after a rank is lost, or give each process its own rank"
            )
        left = "" if env.master else f", unless an earlier gang left the file of {env.init_method}: then remove it"
        _refuse(store, env, f"two processes call themselves rank {env.rank}: give each its own{left}")
    store.set(f"arrivals/{env.rank}", canonical_json(own._asdict()).decode())
    others: list[Arrival] = []
    missing = [rank for rank in range(env.size) if rank != env.rank]
    waiting = _Waiting(deadline)
    while True:
        beat()
        waiting.note(f"rank {', '.join(map(str, missing))} to come to {env.meeting_point}")
        if store.check(["refusal"]):
            _give_up(store, env, store.get("refusal").decode())
        for rank in [rank for rank in missing if store.check([f"arrivals/{rank}"])]:
            other = _read_arrival(store.get(f"arrivals/{rank}"))
            if other is None:
                _refuse(store, env, f"what calls itself rank {rank} is none: does another program use this place?")
            if difference := own.difference(other):
                _refuse(store, env, f"rank {env.rank} and rank {rank} have {difference}")
            missing.remove(rank)
            others.append(other)
        if not missing:
            return others
        if time.monotonic() > deadline:
            raise RankLostError(
                f"{env.size - len(missing)} of {env.size} processes came to {env.meeting_point} within "
                f"{timeout:g} s, and no rank {', '.join(map(str, missing))}: see how they ended, and whether they can "
                "reach rank 0"
            )
        time.sleep(_LOOK_SECONDS)


def _read_arrival(stored: bytes) -> Arrival | None:
    """Parse the settings of a process.

    Returns:
        The settings; of another version only the version; None where they are not those of a rank.
    """
    try:
        document = parse_object(stored)
    except ValueError:
        return None
    version = document.get("version")
    if isinstance(version, str) and version != _VERSION:
        return Arrival(version, spec="", world=0, servers=0, token="", encrypted=False, host="")
    kinds = get_type_hints(Arrival)
    if document.keys() != kinds.keys() or any(type(document[name]) is not kind for name, kind in kinds.items()):
        return None
    return Arrival(**document)


def _refuse(store: Store, env: RankEnv, why: str) -> NoReturn:
    """Store a refusal, so that no process waits for ended ones."""
    store.set("refusal", why)
    _give_up(store, env, why)


def _give_up(store: Store, env: RankEnv, why: str) -> NoReturn:
    """Raise a refusal.

    Rank 0 waits until the others have read it, because the store ends with rank 0.
    """
    store.add("heard", 1)
    deadline = time.monotonic() + _PARTING_SECONDS
    while env.rank == 0 and store.add("heard", 0) < store.add("came", 0) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    raise ConfigError(why)
