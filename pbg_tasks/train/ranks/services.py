"""What a process of a gang offers to the others, and its way to what they offer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.train.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.train.ranks.group.member_registry import Membership
from pbg_tasks.train.ranks.parameters.server import ParameterServer
from pbg_tasks.train.ranks.partitions.client import PartitionClient
from pbg_tasks.train.ranks.partitions.server import PartitionServer
from pbg_tasks.train.ranks.rank import Links
from pbg_tasks.train.ranks.transport.wire import Listener, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from pbg_tasks.train.data.partitions import PartitionKey
    from pbg_tasks.train.data.tables import Table
    from pbg_tasks.train.ranks.group.gang import Gang, RankEnv
    from pbg_tasks.train.ranks.group.member import Member
    from pbg_tasks.train.ranks.parameters.exchange import ParameterExchange
    from pbg_tasks.train.ranks.partitions.partition_store import PartitionStore
    from pbg_tasks.train.ranks.transport.wire import Address, Connection

JOIN_SECONDS = 600.0
"""How long ranks wait for the others to come: their images may have to be pulled first."""
CONNECT_SECONDS = 20.0
LEASES, RECORDS = "leases", "records"
"""Services of the coordinator: who trains what, and what is stored behind the training."""


class Services:
    """This process's services, and its way to those of others.

    Attributes:
        agreed: what rank 0 found.
        server: the partitions that this process keeps for others; None if none.
    """

    def __init__(
        self, gang: Gang, env: RankEnv, member: Member, services: Mapping[str, Callable[[Connection], None]]
    ) -> None:
        self.env = env
        self.agreed: Mapping[str, Any] = {}
        self.server: PartitionServer | None = None
        self._gang, self._member, self._credentials = gang, member, gang.credentials
        self._listener = Listener(gang.credentials, services, host=gang.host)
        self._parameters = ParameterServer()
        self._addresses: list[Address] = []
        self._to_lead: list[Connection] = []

    @contextmanager
    def open(self, found: Mapping[str, Any]) -> Iterator[None]:
        """Learn where the others are, and belong to the gang from now on: whoever falls silent is noticed.

        Args:
            found: by rank 0, of the checkpoint.
        """
        with self._listener as listener:
            shared = self._gang.share({"address": list(listener.address), **found})
            self.agreed = shared[0]
            self._addresses = [(host, port) for host, port in (each["address"] for each in shared)]
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
        """Offer the other services, and wait until everyone does: a rank may have read gigabytes before."""
        config, self._partition_store = partition_store.config, partition_store
        offered = dict(services or {})
        if self.env.role == "trainer":
            offered["parameters"] = self._parameters.serve
        if config.num_partition_servers < 0 or self.env.role == "partition-server":
            server = PartitionServer(self._store, interval=config.store_interval, on_error=self._member.fail)
            self.server = stack.enter_context(server)
            offered["partitions"] = server.serve
        self._listener.offer(offered)
        self._gang.barrier(timeout=JOIN_SECONDS, check=self._member.check)

    def find(self, client: CoordinatorClient | None = None) -> CoordinatorClient:
        """Find the coordinator: ``client`` where it is here."""
        self._records = client or self._remote(RECORDS)
        self._client = client or self._remote(LEASES)
        return self._client

    def _remote(self, service: str) -> CoordinatorClient:
        connection = self._connect(0, service)
        self._to_lead.append(connection)
        return CoordinatorClient.remote(connection, self._member.check)

    def _hang_up(self, membership: Membership) -> None:
        """Wait no longer for answers of a rank 0 that is silent."""
        if membership.leaderless:
            for connection in self._to_lead:
                connection.close()

    def links(
        self, exchange: Callable[[Sequence[Connection | ParameterServer]], ParameterExchange], stack: ExitStack
    ) -> Links:
        """Connect to every other rank.

        Args:
            exchange: makes one of shared parameters, with the servers of all ranks.
            stack: closes it.
        """
        config, world = self._partition_store.config, self.env.world
        partitions = None
        if config.num_partition_servers:
            keepers = range(world) if config.num_partition_servers < 0 else range(world, world + self.env.servers)
            partitions = PartitionClient([self._link(rank, "partitions", self.server) for rank in keepers])
        servers = [self._link(rank, "parameters", self._parameters) for rank in range(world)]
        parameters = exchange(servers)
        stack.callback(parameters.close)
        return Links(self._client, self._member, self._partition_store, parameters, partitions, self.server)

    def _link(self, rank: int, service: str, own: Any) -> Any:  # noqa: ANN401 - what ``service`` has here, or a way to it
        return own if rank == self.env.rank else self._connect(rank, service)

    def _connect(self, rank: int, service: str) -> Connection:
        return connect(self._addresses[rank], self._credentials, service, timeout=CONNECT_SECONDS)

    def _store(self, key: PartitionKey, table: Table, lease: int) -> None:
        """Store a partition behind the training, and tell the coordinator."""
        stored = self._partition_store.put(key, table, f"{lease}.{self.env.rank}", lease=lease)
        self._records.stored(embeddings_file_name(*key, self._partition_store.stamp.version), stored)
