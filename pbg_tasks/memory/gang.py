"""What a process of a gang holds for all of them, beside what it trains itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.memory.forecast import Line
from pbg_tasks.memory.tables import largest_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig

_SERVED_KEYS = ("num_partition_servers", "dimension")
_SHARED_KEYS = ("num_partitions", "dimension")


@dataclass(frozen=True, slots=True)
class GangPart:
    """One process's part of what a gang has in memory.

    Attributes:
        trained: partitions of each entity type that it has in memory to train them, all of a type with one partition.
        served: partitions of each type that lie in its partition server.
        passing: of them how many are there twice at most: the new one while it comes, the old one while it is stored.
        copies: of what ranks share, beside that which is trained: what it knows of the server's, its part of the
            server's, and what rank 0 stores.
    """

    trained: Mapping[str, int]
    served: Mapping[str, int]
    passing: Mapping[str, int]
    copies: float


def served_lines(config: ModelConfig, counts: Mapping[str, Sequence[int]], part: GangPart) -> list[Line]:
    """Return the terms of a partition server, of the largest partitions."""
    return [
        Line("partitions kept for the gang", largest_bytes(config, counts, part.served), _SERVED_KEYS),
        Line("partitions coming and being stored", largest_bytes(config, counts, part.passing), ("num_partitions",)),
    ]


def shared_line(config: ModelConfig, counts: Mapping[str, Sequence[int]], part: GangPart, *, parameters: int) -> Line:
    """Return the term of what ranks share: whole entity types and parameters.

    Args:
        config: the model.
        counts: entities (or features) of each partition, by type.
        part: of the process.
        parameters: bytes of operators and global embeddings, with their sums.
    """
    whole = {entity: 1 for entity, listed in counts.items() if len(listed) == 1}
    size = largest_bytes(config, counts, whole) + parameters
    return Line("copies of what ranks share", int(part.copies * size), _SHARED_KEYS)
