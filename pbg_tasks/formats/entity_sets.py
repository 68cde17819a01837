"""Some of the entities, by type, partition and offset: a sample of candidates, or those that readers are not shown."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXPIRED = "expired.parquet"
"""In the entity path and the release of a night: entities that vanished, where the spec hides those."""
_LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class EntitySet:
    """Entities, each once.

    Attributes:
        partition: int64 (K,) by type.
        offset: int64 (K,) by type.
        limit: of a sample: how many of a type were to be drawn; None of what is no sample, or does not tell.
    """

    partition: Mapping[str, np.ndarray]
    offset: Mapping[str, np.ndarray]
    limit: int | None = None

    def numbers(self, entity: str, bases: np.ndarray) -> np.ndarray | None:
        """Return those of a type as ascending numbers over all partitions; None if the set has none of that type.

        Args:
            entity: the type.
            bases: int64 (P + 1,), number of each partition's first entity, then the total.
        """
        if entity not in self.partition:
            return None
        numbers: np.ndarray = np.sort(bases[self.partition[entity]] + self.offset[entity])
        return numbers

    def to_bytes(self) -> bytes:
        """Write a Parquet file: type, partition, offset; the limit is in its metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = [entity for entity, rows in self.partition.items() for _ in range(len(rows))]
        table = pa.table(
            {
                "type": pa.array(types).dictionary_encode(),
                "partition": np.concatenate(list(self.partition.values())),
                "offset": np.concatenate(list(self.offset.values())),
            },
            metadata=None if self.limit is None else {_LIMIT: str(self.limit)},
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "candidates") -> Self:
        """Read what ``to_bytes`` wrote.

        Raises:
            FormatError: it is something else.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(io.BytesIO(data), columns=["type", "partition", "offset"])
            told = (table.schema.metadata or {}).get(_LIMIT.encode())
            limit = None if told is None else int(told)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"{source}: not a file of candidates: {error}") from None
        kinds = np.asarray(table["type"].to_pylist())
        partition, offset = (table[name].to_numpy() for name in ("partition", "offset"))
        names = dict.fromkeys(kinds.tolist())
        rows = {name: kinds == name for name in names}
        return cls(
            {name: partition[own] for name, own in rows.items()},
            {name: offset[own] for name, own in rows.items()},
            limit,
        )
