"""Contents of an export: embeddings with names, relations, parameters.

All are read from local files, embeddings in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.embeddings import embeddings_shape, iter_blocks
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.publish.exchange.names import check_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema

_BLOCK_VALUES = 1 << 20  # numbers of a block: 4 MiB of float32


class Block(NamedTuple):
    """Rows that follow each other in one partition.

    Attributes:
        names: of the rows.
        vectors: float32 (len(names), D).
    """

    names: list[str]
    vectors: np.ndarray


class Partition(NamedTuple):
    """Local files of one partition, and its number."""

    embeddings: Path
    names: Path
    number: int


class Around(NamedTuple):
    """All partitions of a type, around those of a part.

    Attributes:
        counts: number of rows of each that are not hidden.
        bring: returns the rows of one, downloaded when it is called.
    """

    counts: Sequence[int]
    bring: Callable[[int], EntityRows]


class EntityRows:
    """Embeddings of one entity type, partition after partition.

    The rows are numbered over all partitions.

    Args:
        entity: the type.
        partitions: its files, in order; all of the type's, or those of a part of an export.
        dimension: of the embeddings, D.
        added: float32 (D,), the type's global embedding: it is part of every embedding.
        hidden: int64, ascending numbers of rows that are left out; the others are numbered anew. None: no row is left
            out.
        on_rows: called with the number of rows that were yielded since the last call.
        around: returns what is known of the type's other partitions; None: nothing.

    Attributes:
        around: the same.
        counts: number of rows of each partition that are not hidden.

    Raises:
        FormatError: a file is damaged or of another dimension.
    """

    def __init__(
        self,
        entity: str,
        partitions: Sequence[Partition],
        dimension: int,
        *,
        added: np.ndarray | None = None,
        hidden: np.ndarray | None = None,
        on_rows: Callable[[int], None] | None = None,
        around: Callable[[], Around] | None = None,
    ) -> None:
        self.entity, self.dimension = entity, dimension
        self.around = around
        self._partitions, self._added = tuple(partitions), added
        self._on_rows = on_rows
        shapes = [embeddings_shape(partition.embeddings) for partition in partitions]
        for partition, (_, columns) in zip(partitions, shapes, strict=True):
            if columns != dimension:
                raise FormatError(f"{partition.embeddings}: has dimension {columns}, the config needs {dimension}")
        self._sizes = [rows for rows, _ in shapes]
        shown = np.ones(sum(self._sizes), bool)
        shown[[] if hidden is None else hidden] = False
        self._shown = np.split(shown, np.cumsum(self._sizes))[:-1]
        self.counts = tuple(int(part.sum()) for part in self._shown)

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Numbers of the partitions."""
        return tuple(files.number for files in self._partitions)

    def apart(self) -> Iterator[tuple[int, EntityRows]]:
        """Yield the number and the rows of each partition."""
        for files, shown in zip(self._partitions, self._shown, strict=True):
            yield (
                files.number,
                EntityRows(
                    self.entity,
                    [files],
                    self.dimension,
                    added=self._added,
                    hidden=np.flatnonzero(~shown),
                    on_rows=self._on_rows,
                ),
            )

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in blocks.

        Raises:
            FormatError: a file is damaged, not finite, or has other names than rows, or a name is no text.
        """
        for number, names in enumerate(self.names()):
            start = 0
            for vectors in self._partition_vectors(number):
                stop = start + len(vectors)
                yield Block(names[start:stop], vectors)
                if self._on_rows is not None:
                    self._on_rows(len(vectors))
                start = stop

    def names(self) -> Iterator[list[str]]:
        """Yield the names of each partition; raises as ``blocks``."""
        for number, (count, files) in enumerate(zip(self._sizes, self._partitions, strict=True)):
            names = read_entity_names(files.names.parent, self.entity, files.number, count=count)
            check_unicode(names, source=str(files.names))
            yield list(compress(names, self._shown[number])) if self.counts[number] < count else names

    def vectors(self) -> Iterator[np.ndarray]:
        """Yield all rows without names, float32 (N, D) each.

        It raises as ``blocks``, and does not call ``on_rows``.
        """
        for number in range(len(self._partitions)):
            yield from self._partition_vectors(number)

    def _partition_vectors(self, number: int) -> Iterator[np.ndarray]:
        path, count = self._partitions[number].embeddings, self._sizes[number]
        shown = self._shown[number]
        rows = max(1, _BLOCK_VALUES // self.dimension)
        for start, read in iter_blocks(path, rows, count=count, dimension=self.dimension):
            block = read if self.counts[number] == count else read[shown[start : start + len(read)]]
            yield block if self._added is None else block + self._added


@dataclass(frozen=True, slots=True)
class Contents:
    """All data that an export may hold.

    Attributes:
        config: of the model.
        entities: by type.
        relations: names by id.
        params: shared parameters by PBG's path below ``model/``; with dynamic relations the first axis is the relation.
        stored: time at which the model's file was stored, UTC; None where its store does not know it.
    """

    config: ConfigSchema
    entities: Mapping[str, EntityRows]
    relations: tuple[str, ...]
    params: Mapping[str, np.ndarray]
    stored: datetime | None = None

    @property
    def rows(self) -> int:
        """Number of embeddings of all types."""
        return sum(map(len, self.entities.values()))
