"""Whom the true entity is ranked against: everyone of its type, or a sample drawn once and kept."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Candidates:
    """Samples by entity type, as (partition, offset), which stay the same from night to night.

    Attributes:
        partition: int64 (K,) by type.
        offset: int64 (K,) by type.
    """

    partition: dict[str, np.ndarray]
    offset: dict[str, np.ndarray]

    @classmethod
    def draw(cls, counts: Mapping[str, list[int]], limit: int, seed: int) -> Candidates | None:
        """Draw ``limit`` entities, without replacement, of each type that has more; None when none has."""
        partition, offset = {}, {}
        for entity, listed in counts.items():
            total = sum(listed)
            if total <= limit:
                continue
            rng = np.random.default_rng([seed, *entity.encode()])
            numbers = np.sort(rng.choice(total, size=limit, replace=False, shuffle=False))
            bases = np.concatenate(([0], np.cumsum(listed)))
            partition[entity] = np.searchsorted(bases, numbers, side="right") - 1
            offset[entity] = numbers - bases[partition[entity]]
        return cls(partition, offset) if partition else None

    def numbers(self, entity: str, bases: np.ndarray) -> np.ndarray | None:
        """Return the sample of a type as sorted numbers over all partitions; None: everyone is a candidate."""
        if entity not in self.partition:
            return None
        numbers: np.ndarray = np.sort(bases[self.partition[entity]] + self.offset[entity])
        return numbers

    def to_bytes(self) -> bytes:
        """Write a Parquet file: type, partition, offset."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = [entity for entity, rows in self.partition.items() for _ in range(len(rows))]
        table = pa.table(
            {
                "type": pa.array(types).dictionary_encode(),
                "partition": np.concatenate(list(self.partition.values())),
                "offset": np.concatenate(list(self.offset.values())),
            }
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "candidates") -> Candidates:
        """Read what ``to_bytes`` wrote.

        Raises:
            FormatError: it is something else.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(io.BytesIO(data), columns=["type", "partition", "offset"])
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{source}: not a file of candidates: {error}") from None
        kinds = np.asarray(table["type"].to_pylist())
        partition, offset = (table[name].to_numpy() for name in ("partition", "offset"))
        names = dict.fromkeys(kinds.tolist())
        return cls({name: partition[kinds == name] for name in names}, {name: offset[kinds == name] for name in names})
