"""Which server keeps which piece of the shared parameters: decided alike by every rank, without a word."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SHARD = 1 << 18
"""Numbers that are exchanged at once, at most: 1 MiB of float32."""

SEGMENT = 1 << 10
"""Numbers that cross the wire together or not at all: 4 KiB, a few rows of a table."""

_SMALL = 10_000_000 // 4  # PBG keeps a parameter of up to 10 MB on one server


class Extent(NamedTuple):
    """Numbers ``start`` to ``stop`` of a parameter, flattened."""

    name: str
    start: int
    stop: int


class Shard(NamedTuple):
    """What is exchanged at once: extents laid end to end.

    Attributes:
        server: who keeps it.
        extents: ``SHARD`` numbers or fewer in all.
    """

    server: int
    extents: tuple[Extent, ...]

    @property
    def key(self) -> str:
        """What ranks call it, which says what is in it: who has other parameters has no shard of this name."""
        return sha256(repr([tuple(extent) for extent in self.extents]).encode()).hexdigest()

    def lengths(self) -> np.ndarray:
        """Return the numbers in each segment, int64; a segment lies within one extent."""
        bounds = (np.array([*range(start, stop, SEGMENT), stop]) for _, start, stop in self.extents)
        return np.concatenate([np.diff(bound) for bound in bounds])


def plan_shards(sizes: Mapping[str, int], servers: int) -> list[Shard]:
    """Distribute parameters: a small one has one server, a large one is spread over all.

    Args:
        sizes: how many numbers each parameter has, by name.
        servers: how many there are.

    Returns:
        Shards, which depend on the arguments and nothing else.
    """
    extents: list[list[Extent]] = [[] for _ in range(servers)]
    for name in sorted(sizes):
        home, spread = _stable_hash(name), sizes[name] > _SMALL
        for number, start in enumerate(range(0, sizes[name], SHARD)):
            extent = Extent(name, start, min(start + SHARD, sizes[name]))
            extents[(home + number * spread) % servers].append(extent)
    return [Shard(server, pack) for server, own in enumerate(extents) for pack in _packs(own)]


def _packs(extents: Iterable[Extent]) -> Iterator[tuple[Extent, ...]]:
    """Put neighbours together as long as they fit into one shard."""
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
    """Return the same number in every process; Python's ``hash`` of a string does not, which has cost PBG dearly."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big")
