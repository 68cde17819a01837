"""Memory that a process of a gang holds for the whole gang.

The partitions that it trains itself are not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pbg_tasks.memory.forecast import Line
from pbg_tasks.memory.tables import largest_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ModelConfig

_SERVED_KEYS = ("num_partition_servers", "dimension")
_AHEAD_KEYS = ("partitions_ahead", "num_partitions")
_SHARED_KEYS = ("num_partitions", "dimension")


@dataclass(frozen=True, slots=True)
class GangPart:
    """One process's share of the memory of a gang.

    Attributes:
        trained: number of partitions of each entity type that it has in memory to train them, all of a type with one
            partition.
        served: number of partitions of each type in its partition server.
        passing: largest number of them that are there twice: the new one while it arrives, the old one while it is
            stored.
        copies: number of copies of the shared parameters beside those that are trained: the process's last copy of the
            server's, its part of the server's, and the copy that rank 0 stores.
        ahead: number of partitions of each type beside ``trained``: the next bucket's, which are read, and the last
            bucket's, which are put away.
    """

    trained: Mapping[str, int]
    served: Mapping[str, int]
    passing: Mapping[str, int]
    copies: float
    ahead: Mapping[str, int] = field(default_factory=dict)


def served_lines(config: ModelConfig, counts: Mapping[str, Sequence[int]], part: GangPart) -> list[Line]:
    """Return the terms of a partition server, of the largest partitions."""
    return [
        Line("partitions kept for the gang", largest_bytes(config, counts, part.served), _SERVED_KEYS),
        Line("partitions coming and being stored", largest_bytes(config, counts, part.passing), ("num_partitions",)),
        Line("partitions read and put away while training", largest_bytes(config, counts, part.ahead), _AHEAD_KEYS),
    ]


def shared_line(config: ModelConfig, counts: Mapping[str, Sequence[int]], part: GangPart, *, parameters: int) -> Line:
    """Return the term of the data that ranks share.

    These are whole entity types and parameters.

    Args:
        config: the model.
        counts: entities (or features) of each partition, by type.
        part: of the process.
        parameters: bytes of operators and global embeddings, with their sums.
    """
    whole = {entity: 1 for entity, listed in counts.items() if len(listed) == 1}
    size = largest_bytes(config, counts, whole) + parameters
    return Line("copies of what ranks share", int(part.copies * size), _SHARED_KEYS)
