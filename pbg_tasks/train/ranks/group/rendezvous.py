"""Where the processes of a gang meet: a store of torch's, at which each says who it is and waits for the others.

They compare what has to be equal before any group is formed, so that a wrong spec, version or number of processes is
said at once by everyone, where a group of torch's would hang; and whoever does not come is named.
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
from pbg_tasks.train.ranks.group.rank_env import ENVIRONMENT
from pbg_tasks.train.ranks.transport.frames import parse_object
from pbg_tasks.train.ranks.transport.host import common_host, is_loopback, own_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]  # as below: public, says the manual

    from pbg_tasks.train.ranks.group.rank_env import RankEnv
    from pbg_tasks.train.ranks.transport.wire import Address

_LOOK_SECONDS = 0.05  # between two looks at who has come
_PARTING_SECONDS = 3.0  # in which those that have come can hear a refusal
_PORT_SECONDS = 5.0  # in which a gang that has just ended gives its port back
_CALL_SECONDS = 1.0  # for one attempt to reach rank 0


class Arrival(NamedTuple):
    """What each process says of itself.

    Attributes:
        version: of this package.
        spec: hash of the run spec.
        world: trainers.
        servers: partition servers.
        token: tells two run tokens apart without giving them away; empty where there is none.
        host: the address under which this process can be reached.
    """

    version: str
    spec: str
    world: int
    servers: int
    token: str
    host: str

    def difference(self, other: Arrival) -> str:
        """Return what has to be the same and is not, mine first, and what to do; empty if nothing."""
        if self.version != other.version:
            return f"pbg_tasks {self.version} and {other.version}: install one version everywhere"
        if self.spec != other.spec:
            return f"the run specs {self.spec:.12} and {other.spec:.12}: start all of them with the same run"
        if (self.world, self.servers) != (other.world, other.servers):
            return (
                f"{self.world} trainers with {self.servers} partition servers, and {other.world} with {other.servers}: "
                "set the same WORLD_SIZE, or num_machines, everywhere"
            )
        if self.token != other.token:
            return "different run tokens: set the same PBG_RUN_TOKEN everywhere, or nowhere"
        return ""


def meet(env: RankEnv, spec: str, *, token: str | None, timeout: float, beat: Callable[[], None]) -> tuple[Store, str]:
    """Wait until all processes are there and agree.

    Args:
        env: of this process.
        spec: hash of the run spec.
        token: the gang's secret.
        timeout: seconds in which all have to come.
        beat: called again and again, unless a call of torch's hangs.

    Returns:
        A store for the group, and the address under which the others reach this process.

    Raises:
        ConfigError: the processes do not fit together, or cannot meet where they are told to.
        RankLostError: after ``timeout`` seconds some have not come.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    deadline = time.monotonic() + timeout
    tag = "" if token is None else hashlib.sha256(b"pbg_tasks run token " + token.encode()).hexdigest()[:16]
    try:
        store = _open(env, tag, deadline, beat)
        host = own_host(env.master[0] if env.master else None)
        own = Arrival(__version__, spec, env.world, env.servers, tag, host)
        others = _call_roll(store, env, own, deadline, timeout, beat)
    except RuntimeError as error:  # torch's
        reason = str(error).partition("\n")[0]
        raise RankLostError(f"rank 0, or what it shares at {env.meeting_point}, is gone: {reason}") from None
    return PrefixStore("group", store), common_host(host, [other.host for other in others])


def _open(env: RankEnv, tag: str, deadline: float, beat: Callable[[], None]) -> Store:
    """Open the store that all share; rank 0 makes it, unless torchrun has."""
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]

    master = env.master
    if master is None:
        path = Path(urlsplit(env.init_method).path)
        if not path.parent.is_dir():
            raise ConfigError(f"distributed_init_method: {env.init_method}: there is no directory {path.parent}")
        # The file of a gang that was killed stays; for a gang with another token it is as good as new.
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
    """Take the port of the store, on the loopback interface alone where that is where the others are told to come."""
    host, port = master
    local = is_loopback(host)
    last = min(deadline, time.monotonic() + _PORT_SECONDS)
    while True:
        try:
            if local or not socket.has_dualstack_ipv6():
                return socket.create_server((host if local else "", port))
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if time.monotonic() > last:
                raise ConfigError(
                    f"port {port} for the ranks to meet: {error.strerror}; another process of this machine has it, "
                    "perhaps a second rank 0"
                ) from None
            time.sleep(_LOOK_SECONDS)


def _await_master(master: Address, deadline: float, beat: Callable[[], None]) -> None:
    """Wait for rank 0 more quietly than torch does: its name may be unknown for a while, and its port closed."""
    while True:
        beat()
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


def _call_roll(
    store: Store, env: RankEnv, own: Arrival, deadline: float, timeout: float, beat: Callable[[], None]
) -> list[Arrival]:
    """Say that this process has come, and return what the others said."""
    store.add("came", 1)
    if store.add(f"claims/{env.rank}", 1) > 1:
        left = "" if env.master else f", unless an earlier gang left the file of {env.init_method}: then remove it"
        _refuse(store, env, f"two processes call themselves rank {env.rank}: give each its own{left}")
    store.set(f"arrivals/{env.rank}", canonical_json(own._asdict()).decode())
    others: list[Arrival] = []
    missing = [rank for rank in range(env.size) if rank != env.rank]
    while True:
        beat()
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


def _read_arrival(said: bytes) -> Arrival | None:
    """Return what a process said of itself; of another version only that, and None where no rank would say it."""
    try:
        document = parse_object(said)
    except ValueError:
        return None
    version = document.get("version")
    if isinstance(version, str) and version != __version__:
        return Arrival(version, spec="", world=0, servers=0, token="", host="")
    kinds = get_type_hints(Arrival)
    if document.keys() != kinds.keys() or any(type(document[name]) is not kind for name, kind in kinds.items()):
        return None
    return Arrival(**document)


def _refuse(store: Store, env: RankEnv, why: str) -> NoReturn:
    """Say to all what is wrong, so that none waits for others that have given up."""
    store.set("refusal", why)
    _give_up(store, env, why)


def _give_up(store: Store, env: RankEnv, why: str) -> NoReturn:
    """End with a refusal, rank 0 when the others have heard it: it takes the store away with it."""
    store.add("heard", 1)
    deadline = time.monotonic() + _PARTING_SECONDS
    while env.rank == 0 and store.add("heard", 0) < store.add("came", 0) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    raise ConfigError(why)
