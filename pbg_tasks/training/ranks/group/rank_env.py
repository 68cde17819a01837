"""Rank of this process and number of processes, from the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pbg_tasks.config.support import check_alone
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import say
from pbg_tasks.training.environment import number_of

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.ranks.transport.handshake import Role

ENVIRONMENT = "env://"
INIT_METHOD = "PBG_INIT_METHOD"
"""Variable with which a launcher overrides the config's meeting point."""
_RANKS = ("RANK", "JOB_COMPLETION_INDEX")  # torchrun and this package's launcher; an Indexed Job of Kubernetes
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_LARGEST_PORT = 65535


class RankEnv(NamedTuple):
    """One process of a gang: trainers come first, then partition servers.

    Attributes:
        rank: rank of this process, from 0.
        world: number of trainers.
        servers: number of processes that only keep partitions.
        init_method: meeting point, in torch's notation: ``env://``, ``tcp://HOST:PORT`` or ``file:///PATH``.
    """

    rank: int
    world: int
    servers: int
    init_method: str

    @property
    def size(self) -> int:
        """Number of all processes."""
        return self.world + self.servers

    @property
    def role(self) -> Role:
        """Role of this process."""
        return "trainer" if self.rank < self.world else "partition-server"

    @property
    def master(self) -> tuple[str, int] | None:
        """Host and port of rank 0's store; None for a file."""
        if self.init_method == ENVIRONMENT:
            return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        url = urlsplit(self.init_method)
        return (url.hostname or "", url.port or 0) if url.scheme == "tcp" else None

    @property
    def meeting_point(self) -> str:
        """Meeting point, for messages."""
        return self.init_method if self.master is None else "{}:{}".format(*self.master)

    @classmethod
    def from_environment(cls, config: ModelConfig, *, rank: int | None = None, alone: bool = False) -> RankEnv | None:
        """Read the rank of this process from the environment.

        The rank is the one given, else ``RANK``, else ``JOB_COMPLETION_INDEX``. ``WORLD_SIZE`` is the number of all
        processes, including partition servers; without it the config's numbers are used. The address of rank 0 is
        ``MASTER_ADDR`` and ``MASTER_PORT``, or else ``distributed_init_method``, which also comes first where a rank is
        given. With ``alone`` the config's numbers do not count for a process without a rank.

        Returns:
            The process; None where it trains alone.

        Raises:
            ConfigError: a setting is missing or contradicts another; the variable or key is named.
        """
        number, source = _own_rank(rank)
        size = number_of("WORLD_SIZE")
        if (size == 1 and not number) or (alone and size is None and number is None):
            if config.num_machines > 1:
                cause = "WORLD_SIZE is 1" if size else "all tasks are done here"
                say(f"num_machines is {config.num_machines}, {cause}: this process trains alone")
            return None
        servers = max(config.num_partition_servers, 0)
        if size is None:
            if source == "RANK":
                raise ConfigError("RANK is set and WORLD_SIZE is not: set it to the number of processes")
            size = config.num_machines + servers
            if size == 1 and not number:
                return None
        if number is None:
            cause = f"WORLD_SIZE is {size}" if "WORLD_SIZE" in os.environ else f"num_machines is {config.num_machines}"
            raise ConfigError(
                f"{cause}, and nothing says which of them this process is: start them all with `pbg train --ranks N` "
                "or torchrun, or each with its --rank, RANK or JOB_COMPLETION_INDEX"
            )
        if not 0 <= number < size:
            raise ConfigError(f"{source} is {number}, which is none of the {size} processes from 0 to {size - 1}")
        world = size - servers
        if world < 1:
            raise ConfigError(
                f"WORLD_SIZE is {size}, and num_partition_servers: {servers} leaves no trainer: it counts both"
            )
        if number == 0 and config.num_machines not in {1, world}:
            say(f"num_machines is {config.num_machines}; {size} processes make {world} trainers")
        check_alone(config, who=f"{size} processes")
        return cls(number, world, servers, _init_method(config, given=rank is not None))


def _own_rank(given: int | None) -> tuple[int | None, str]:
    """Return the rank of this process, and the name of its source."""
    found = {name: number for name in _RANKS if (number := number_of(name)) is not None}
    if given is None:
        name = next(iter(found), "")
        return found.get(name), name
    if found.get("RANK", given) != given:
        raise ConfigError(f"--rank is {given} and RANK is {found['RANK']}: leave one of them out")
    return given, "--rank"


def _init_method(config: ModelConfig, *, given: bool) -> str:
    if chosen := os.environ.get(INIT_METHOD):
        return _checked(chosen)
    configured = config.distributed_init_method
    missing = [name for name in _MASTER if not os.environ.get(name)]
    if configured and configured != ENVIRONMENT and (given or missing):
        return _checked(configured)
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)}: not set, so the processes cannot find rank 0; set both, or "
            "distributed_init_method: tcp://HOST:PORT"
        )
    _named("MASTER_ADDR", os.environ["MASTER_ADDR"])
    if not 0 < (number_of("MASTER_PORT") or 0) <= _LARGEST_PORT:
        raise ConfigError(f"MASTER_PORT is {os.environ['MASTER_PORT']} instead of a port between 1 and {_LARGEST_PORT}")
    return ENVIRONMENT


def _checked(method: str) -> str:
    url = urlsplit(method)
    try:
        sound = bool(url.hostname and url.port) if url.scheme == "tcp" else url.scheme == "file" and bool(url.path)
    except ValueError:  # an invalid port
        sound = False
    if not sound:
        raise ConfigError(
            f"distributed_init_method: {method!r} is neither env:// nor tcp://HOST:PORT nor file:///PATH on a disk "
            "that all share"
        )
    _named("distributed_init_method", url.hostname or "")
    return method


def _named(source: str, host: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(f"{source}: {host!r} is no name of a host") from None
