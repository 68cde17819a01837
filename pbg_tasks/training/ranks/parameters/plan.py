"""Distribution of the shared parameters over servers.

Every rank computes the same one, without a message.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SHARD = 1 << 18
"""Most numbers that are exchanged at once: 1 MiB of float32."""

SEGMENT = 1 << 10
"""Numbers that are transferred together or not at all.

They are 4 KiB, a few rows of a table.
"""

_SMALL = 10_000_000 // 4  # PBG keeps a parameter of up to 10 MB on one server


class Extent(NamedTuple):
    """Numbers ``start`` to ``stop`` of a parameter, flattened."""

    name: str
    start: int
    stop: int


class Shard(NamedTuple):
    """Extents that are exchanged at once, laid end to end.

    Attributes:
        server: index of its server.
        extents: ``SHARD`` numbers or fewer in total.
    """

    server: int
    extents: tuple[Extent, ...]

    @property
    def key(self) -> str:
        """Name of the shard among ranks.

        It depends on the content, so a rank with other parameters has no shard of this name.
        """
        return sha256(repr([tuple(extent) for extent in self.extents]).encode()).hexdigest()

    def lengths(self) -> np.ndarray:
        """Return the numbers in each segment, int64.

        A segment is within one extent.
        """
        bounds = (np.array([*range(start, stop, SEGMENT), stop]) for _, start, stop in self.extents)
        return np.concatenate([np.diff(bound) for bound in bounds])


def plan_shards(sizes: Mapping[str, int], servers: int) -> list[Shard]:
    """Distribute parameters over servers.

    A small parameter has one server, a large one is spread over all.

    Args:
        sizes: how many numbers each parameter has, by name.
        servers: number of servers.

    Returns:
        Shards, which depend on the arguments alone.
    """
    extents: list[list[Extent]] = [[] for _ in range(servers)]
    for name in sorted(sizes):
        home, spread = _stable_hash(name), sizes[name] > _SMALL
        for number, start in enumerate(range(0, sizes[name], SHARD)):
            extent = Extent(name, start, min(start + SHARD, sizes[name]))
            extents[(home + number * spread) % servers].append(extent)
    return [Shard(server, pack) for server, own in enumerate(extents) for pack in _packs(own)]


def _packs(extents: Iterable[Extent]) -> Iterator[tuple[Extent, ...]]:
    """Group neighbours as long as they fit into one shard."""
    pack: list[Extent] = []
    room = SHARD
    for extent in extents:
        size = extent.stop - extent.start
        if size > room:
            yield tuple(pack)
            pack, room = [], SHARD
        pack.append(extent)
        room -= size
    if pack:
        yield tuple(pack)


def _stable_hash(name: str) -> int:
    """Return a hash that is the same in every process.

    Python's ``hash`` of a string differs between processes, which caused a defect in PBG.
    """
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big")
