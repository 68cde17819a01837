"""Tables of embeddings, read from their partitions' files in blocks.

A budget limits how much of a table is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.evaluate.ids import are_among
from pbg_tasks.formats.embeddings import iter_blocks, iter_rows

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence
    from pathlib import Path

    from pbg_tasks.evaluate.filters import Answers

# A tile of scores stays in the processor's cache between the product and the comparison. 512 questions against 2048
# candidates are enough for the product to be at its fastest.
MAX_TILE_SCORES = 1 << 20
MIN_TILE_SCORES = 1 << 16
MAX_BLOCK_ROWS = 4096
ENOUGH_BLOCK_ROWS = 2048
MIN_BLOCK_ROWS = 256

_GATHERED_ROWS = 512  # rows copied at a time, which stay in the cache from one copy to the next
SPARSE = 32
"""Of a file with so many times more rows than are wanted, only these are read: one alone costs as much as some 30 of a
stream. A part of an evaluation relies on it: it may have these rows alone.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes that keep an evaluation within its memory.

    Attributes:
        edges: number of held-out edges whose queries are kept at a time.
        rows: largest number of candidates in a block.
        scores: largest number of scores at a time, unless those of one question with a block are more.
    """

    edges: int
    rows: int
    scores: int

    @classmethod
    def of(cls, memory_bytes: int, dimension: int, threads: int, most_rows: int = MAX_BLOCK_ROWS) -> Self:
        """Divide the memory of an evaluation.

        Half is for queries and true entities, an eighth for the threads' candidates, and an eighth for scores. A query
        and its true entity exist raw and prepared, some five rows together with their numbers. A candidate exists raw,
        prepared and in the form of its comparator, some four rows, and a tile of scores up to three times.
        """
        edge, row = 4 * 5 * dimension + 100, 4 * 4 * dimension
        share = memory_bytes // 8 // threads
        return cls(
            edges=max(memory_bytes // 2 // edge, 512),
            rows=min(max(share // row, MIN_BLOCK_ROWS), most_rows),
            scores=min(max(share // (3 * 4), MIN_TILE_SCORES), MAX_TILE_SCORES),
        )

    def block_rows(self, questions: int) -> int:
        """Return the number of candidates to compare at a time.

        With few questions, every block costs more, so it is larger.
        """
        return min(self.rows, max(self.scores // questions, ENOUGH_BLOCK_ROWS))

    def product_rows(self, dimension: int) -> int:
        """Return the number of candidates to compare at a time by products.

        These take no tiles, whose memory holds more candidates instead: each block costs some work of its own.
        """
        return self.rows + 3 * self.scores // (4 * dimension)


@dataclass(frozen=True, slots=True)
class Block:
    """Candidates in memory.

    Attributes:
        numbers: int64 (K,), ascending.
        rows: float32 (K, D), raw embeddings.
    """

    numbers: np.ndarray
    rows: np.ndarray

    def columns(self, numbers: np.ndarray) -> np.ndarray:
        """Return the column of each entity; -1 where the block lacks it."""
        column = np.searchsorted(self.numbers, numbers)
        column[column == len(self.numbers)] = 0
        return np.where(self.numbers[column] == numbers, column, -1)

    def among(self, numbers: np.ndarray) -> Block:
        """Return only the candidates with the given numbers, which ascend."""
        kept = np.flatnonzero(are_among(self.numbers, numbers))  # flags would take twice as long to copy rows by
        return self if len(kept) == len(self.numbers) else Block(self.numbers[kept], self.rows[kept])

    def cut(self, first: int, rows: int) -> Block:
        """Return at most ``rows`` of the candidates from column ``first`` on."""
        return Block(self.numbers[first : first + rows], self.rows[first : first + rows])


class EntityTable:
    """Embeddings of one entity type, in files.

    Args:
        paths: file of each partition, in order.
        bases: first number of each partition, then the total.
        dimension: of the embeddings.
        sample: ascending numbers of the candidates; None means all entities.
        rows: number of rows of each file, where they are fewer than in ``bases``: entities after them are no candidates
            and are never looked up.
        share: partitions whose candidates ``blocks`` yields; None: all. All other figures stay those of the whole.
    """

    def __init__(
        self,
        paths: list[Path],
        bases: np.ndarray,
        dimension: int,
        sample: np.ndarray | None,
        rows: Sequence[int] | None = None,
        share: Container[int] | None = None,
    ) -> None:
        self._paths, self._bases = paths, bases
        self._dimension, self._sample = dimension, sample
        self._share = share
        self._rows = np.diff(bases).tolist() if rows is None else rows

    @property
    def candidates(self) -> int:
        """Number of candidates."""
        return int(self._bases[-1]) if self._sample is None else len(self._sample)

    @property
    def shared(self) -> int:
        """Number of candidates of the share."""
        if self._share is None:
            return self.candidates
        ends = self._bases if self._sample is None else np.searchsorted(self._sample, self._bases)
        return int(sum(count for partition, count in enumerate(np.diff(ends)) if partition in self._share))

    def candidate_numbers(self) -> np.ndarray:
        """Return the numbers of the candidates, ascending."""
        return np.arange(self._bases[-1]) if self._sample is None else self._sample

    def candidate_flags(self) -> np.ndarray | None:
        """Return whether each entity is a candidate: bool (N,).

        None is returned where all are.
        """
        if self._sample is None:
            return None
        flags = np.zeros(int(self._bases[-1]), bool)
        flags[self._sample] = True
        return flags

    def among(self, sample: np.ndarray, share: Container[int] | None = None) -> EntityTable:
        """Return the same embeddings with other candidates.

        Args:
            sample: their numbers, ascending.
            share: see the class; None: as in this table.
        """
        share = self._share if share is None else share
        return EntityTable(self._paths, self._bases, self._dimension, sample, self._rows, share)

    def eligible(self, numbers: np.ndarray) -> np.ndarray:
        """Return whether entities are candidates: bool (N,)."""
        return np.ones(len(numbers), bool) if self._sample is None else are_among(numbers, self._sample)

    def only_candidates(self, answers: Answers) -> Answers:
        """Return the answers that are candidates."""
        return answers if self._sample is None else answers.among(self._sample)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield the candidates of the share, at most ``rows`` at a time.

        No block has candidates of two partitions, so that a share's blocks are those of the whole.
        """
        for partition, (path, first, count) in enumerate(self._files()):
            if self._share is not None and partition not in self._share:
                continue
            if self._sample is None:
                numbers = np.arange(first, first + count)
            else:
                numbers = self._sample[slice(*np.searchsorted(self._sample, (first, first + count)))]
            yield from self._blocks_of(path, first, count, numbers, rows)

    def _blocks_of(self, path: Path, first: int, count: int, numbers: np.ndarray, rows: int) -> Iterator[Block]:
        """Yield the candidates in one file, which has ``numbers`` of them."""
        if len(numbers) * SPARSE < count:
            blocks = iter_rows(path, numbers - first, rows, count=count, dimension=self._dimension)
            for at, raw in enumerate(blocks):
                yield Block(numbers[at * rows : at * rows + len(raw)], raw)
            return
        for start, raw in iter_blocks(path, rows, count=count, dimension=self._dimension):
            here = first + start
            own = numbers[slice(*np.searchsorted(numbers, (here, here + len(raw))))]
            if len(own) == len(raw):
                yield Block(own, raw)
            elif len(own):
                yield Block(own, raw[own - here])

    def gather(self, numbers: np.ndarray, rows: int) -> np.ndarray:
        """Return the embeddings of some entities, float32 (N, D).

        ``rows`` of them are read at a time.
        """
        result = np.empty((len(numbers), self._dimension), np.float32)
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        for path, first, count in self._files():
            start, stop = np.searchsorted(ordered, (first, first + count)).tolist()
            offsets, places = ordered[start:stop] - first, order[start:stop]
            if len(offsets) * SPARSE < count:
                for raw in iter_rows(path, offsets, rows, count=count, dimension=self._dimension):
                    places, here = places[len(raw) :], places[: len(raw)]
                    result[here] = raw
                continue
            for begin, raw in iter_blocks(path, rows, count=count, dimension=self._dimension):
                low, high = np.searchsorted(offsets, (begin, begin + len(raw))).tolist()
                for piece in range(low, high, _GATHERED_ROWS):
                    taken = slice(piece, min(piece + _GATHERED_ROWS, high))
                    result[places[taken]] = raw[offsets[taken] - begin]
        return result

    def _files(self) -> Iterator[tuple[Path, int, int]]:
        """Yield (file, number of its first entity, number of its rows)."""
        yield from zip(self._paths, self._bases[:-1].tolist(), self._rows, strict=True)
