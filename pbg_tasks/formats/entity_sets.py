"""Sets of entities, by type, partition and offset.

Such a set is a sample of candidates, or the entities that a release hides from readers.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.arrow_numbers import column, numbers, text_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXPIRED = "expired.parquet"
"""File in the entity path and the release of a night with the entities that vanished, where the spec hides those."""
_LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class EntitySet:
    """Set of entities, each once.

    Attributes:
        partition: int64 (K,) by type.
        offset: int64 (K,) by type.
        limit: in a sample, the number of entities to be drawn of a type; None in a set that is no sample, or whose file
            does not record it.
    """

    partition: Mapping[str, np.ndarray]
    offset: Mapping[str, np.ndarray]
    limit: int | None = None

    def numbers(self, entity: str, bases: np.ndarray) -> np.ndarray | None:
        """Return the entities of a type as ascending numbers over all partitions.

        None is returned if the set has no entities of that type.

        Args:
            entity: the type.
            bases: int64 (P + 1,), number of each partition's first entity, then the total.
        """
        if entity not in self.partition:
            return None
        numbers: np.ndarray = np.sort(bases[self.partition[entity]] + self.offset[entity])
        return numbers

    def within(self, entity: str, partitions: Sequence[int]) -> Self:
        """Return the entities of some partitions, which are numbered anew.

        Args:
            entity: the type.
            partitions: ascending.
        """
        if entity not in self.partition:
            return self
        own = np.isin(self.partition[entity], partitions)
        places = np.searchsorted(np.asarray(partitions, np.int64), self.partition[entity][own])
        return replace(self, partition={entity: places}, offset={entity: self.offset[entity][own]})

    def to_bytes(self) -> bytes:
        """Return a Parquet file of the set.

        It has the columns type, partition and offset, and the limit in its metadata.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        codes = np.repeat(np.arange(len(self.partition), dtype=np.int32), [len(own) for own in self.partition.values()])
        table = pa.table(
            {
                "type": pa.DictionaryArray.from_arrays(column(codes), text_column(self.partition)),
                "partition": column(np.concatenate(list(self.partition.values()))),
                "offset": column(np.concatenate(list(self.offset.values()))),
            },
            metadata=None if self.limit is None else {_LIMIT: str(self.limit)},
        )
        buffer = io.BytesIO()
        ascending = dict.fromkeys(("partition", "offset"), "DELTA_BINARY_PACKED")
        pq.write_table(table, buffer, compression="zstd", use_dictionary=["type"], column_encoding=ascending)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "candidates") -> Self:
        """Read a file that ``to_bytes`` made.

        Raises:
            FormatError: it is another file.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # Unlike ``read_table``, which imports Arrow's data sets for a second.
            table = pq.ParquetFile(io.BytesIO(data)).read(columns=["type", "partition", "offset"])
            types = table["type"].cast(pa.string()).combine_chunks().dictionary_encode()
            codes = numbers(types.indices, np.int32)
            partition, offset = (numbers(table[name].combine_chunks(), np.int64) for name in ("partition", "offset"))
            stored = (table.schema.metadata or {}).get(_LIMIT.encode())
            limit = None if stored is None else int(stored)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise FormatError(f"{source}: not a file of candidates: {error}") from None
        rows = {name: codes == code for code, name in enumerate(types.dictionary.to_pylist())}
        return cls(
            {name: partition[own] for name, own in rows.items()},
            {name: offset[own] for name, own in rows.items()},
            limit,
        )
