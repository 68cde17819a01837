"""Services of a gang's process, and connections to those of others."""

from __future__ import annotations

from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.training.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.training.ranks.group.member_registry import Membership
from pbg_tasks.training.ranks.parameters.server import ParameterServer
from pbg_tasks.training.ranks.partitions.client import PartitionClient
from pbg_tasks.training.ranks.partitions.server import PartitionServer
from pbg_tasks.training.ranks.rank import Links
from pbg_tasks.training.ranks.transport.renewal import RenewedConnection
from pbg_tasks.training.ranks.transport.wire import Listener, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.ranks.group.gang import Gang, RankEnv
    from pbg_tasks.training.ranks.group.member import Member
    from pbg_tasks.training.ranks.parameters.exchange import ParameterExchange
    from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.training.ranks.transport.renewal import Requester
    from pbg_tasks.training.ranks.transport.wire import Address, Connection

JOIN_SECONDS = 600.0
"""Seconds to wait for the other ranks, whose images may have to be pulled."""
READ_SECONDS = 3600.0
"""Seconds to wait for what the others read first: rank 0 looks for loops, perhaps in all edges.

A rank that is lost meanwhile ends the wait at once.
"""
CONNECT_SECONDS = 20.0
LEASES, RECORDS = "leases", "records"
"""Services of the coordinator: leases of buckets, and records of stored objects."""


class Services:
    """Services of this process, and connections to those of others.

    Attributes:
        agreed: findings of rank 0.
        server: partitions that this process keeps for others; None if it keeps none.
    """

    def __init__(
        self, gang: Gang, env: RankEnv, member: Member, services: Mapping[str, Callable[[Connection], None]]
    ) -> None:
        self.env = env
        self.agreed: Mapping[str, Any] = {}
        self.server: PartitionServer | None = None
        self._gang, self._member = gang, member
        self._credentials = gang.credentials
        self._listener = Listener(gang.credentials, services, host=gang.host)
        self._parameters = ParameterServer()
        self._addresses: list[Address] = []
        self._to_lead: list[Connection] = []

    @contextmanager
    def open(self, found: Mapping[str, Any]) -> Iterator[None]:
        """Exchange addresses and join the gang.

        From now on a silent rank is noticed.

        Args:
            found: findings of rank 0 on the checkpoint.
        """
        with self._listener as listener:
            shared = self._gang.share({"address": list(listener.address), **found})
            self.agreed = shared[0]
            self._addresses = [(str(host), int(port)) for host, port in map(itemgetter("address"), shared)]
            membership = Membership(self._addresses[0], self._credentials)
            membership.on_break(lambda: self._hang_up(membership))
            self._member.join(membership)
            try:
                yield
            except BaseException as error:
                membership.leave(error)
                raise
            membership.leave()

    def serve(
        self,
        partition_store: PartitionStore,
        stack: ExitStack,
        services: Mapping[str, Callable[[Connection], None]] | None = None,
    ) -> None:
        """Offer the other services, and wait until every process does.

        A rank may have to read gigabytes before.
        """
        self._partition_store = partition_store
        config = partition_store.config
        offered = dict(services or {})
        if self.env.role == "trainer":
            offered["parameters"] = self._parameters.serve
        if config.num_partition_servers < 0 or self.env.role == "partition-server":
            server = PartitionServer(self._store, interval=config.store_interval, on_error=self._member.fail)
            self.server = stack.enter_context(server)
            offered["partitions"] = server.serve
        self._listener.offer(offered)
        self._gang.barrier(timeout=READ_SECONDS, check=self._member.check)

    def find(self, client: CoordinatorClient | None = None) -> CoordinatorClient:
        """Return a client of the coordinator: on its rank, ``client``."""
        self._records = client or self._remote(RECORDS)
        self._client = client or self._remote(LEASES)
        return self._client

    def _remote(self, service: str) -> CoordinatorClient:
        connection = self._connect(0, service)
        self._to_lead.append(connection)
        return CoordinatorClient.remote(connection, self._member.check)

    def _hang_up(self, membership: Membership) -> None:
        """Interrupt waiting for answers of a silent rank 0."""
        if membership.leaderless:
            for connection in self._to_lead:
                connection.close()

    def links(
        self, exchange: Callable[[Sequence[Requester | ParameterServer]], ParameterExchange], stack: ExitStack
    ) -> Links:
        """Connect to every other rank.

        Args:
            exchange: makes the exchange of shared parameters, given the servers of all ranks.
            stack: closes the exchange.
        """
        config, world = self._partition_store.config, self.env.world
        partitions = None
        if config.num_partition_servers:
            keepers = range(world) if config.num_partition_servers < 0 else range(world, world + self.env.servers)
            partitions = PartitionClient([self._link(rank, "partitions", self.server) for rank in keepers])
        servers = [self._link(rank, "parameters", self._parameters) for rank in range(world)]
        parameters = exchange(servers)
        stack.callback(parameters.close)
        return Links(
            self._client, self._member, self._partition_store, parameters, self._records, partitions, self.server
        )

    def _link(self, rank: int, service: str, own: Any) -> Any:  # noqa: ANN401 - the service itself, or a connection to it
        return own if rank == self.env.rank else RenewedConnection(lambda: self._connect(rank, service))

    def _connect(self, rank: int, service: str) -> Connection:
        return connect(self._addresses[rank], self._credentials, service, timeout=CONNECT_SECONDS)

    def _store(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Store a partition behind the training, and report it to the coordinator."""
        stored = self._partition_store.put(key, table, f"{lease}.{self.env.rank}", lease=lease)
        self._records.stored(embeddings_file_name(*key, self._partition_store.stamp.version), stored)
