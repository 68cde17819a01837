"""Index of a type's names, in an Arrow file that is mapped.

It has a row for each entity, numbered over all partitions, and four columns: the name of the entity of this number, and
three of a hash table and an order by name. ``bucket`` has for each bucket the row of ``by_hash`` at which it begins;
``by_hash`` has the numbers of the entities ordered by their buckets, those of one bucket ascending; ``by_name`` has the
numbers ordered by the bytes of the names. There are as many buckets as entities.

Beside the file are the SHA-256 of its blocks, so that a reader verifies the few blocks that a look-up reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

FORMAT = "1"
INDEX = "entity_index_"
"""Beginning of the names of all files of indexes."""
BLOCK = 1 << 16
_DIGEST = hashlib.sha256().digest_size
NUMBERS = ("bucket", "by_hash", "by_name")
_WIDTHS = {"offsets": 8, "text": 1} | dict.fromkeys(NUMBERS, 4)
"""Parts of the file, with the bytes of an item."""
_SHOWN = 4
_NONE = np.zeros(1, np.int64)


def index_file_name(entity: str) -> str:
    """Return the file name of a type's index."""
    return f"{INDEX}{entity}.arrow"


def digests_file_name(entity: str) -> str:
    """Return the file name of the hashes of an index's blocks."""
    return f"{INDEX}{entity}.sha256"


def buckets(names: Iterable[str], entities: int) -> np.ndarray:
    """Return the buckets of names: int64 (N,).

    There are as many as entities. A name's bucket is bytes 4 to 7 of its MD5, little-endian, times the number of
    entities, divided by 2**32.
    """
    digests = b"".join(
        hashlib.md5(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest() for name in names
    )
    word = np.frombuffer(digests, "<u4").reshape(-1, 4)[:, 1].astype(np.uint64)
    return ((word * np.uint64(entities)) >> np.uint64(32)).astype(np.int64)


class NameTable:
    """Names of a type, with a hash table and their order.

    Args:
        names: by number, large strings.
        numbers: the other columns of the index, uint32 (N,) each.
        source: path or URL, for messages.
    """

    def __init__(self, names: pa.Array, numbers: Mapping[str, np.ndarray], *, source: str) -> None:
        self._names, self._columns = names, dict(numbers)
        self._source = source
        self._offsets = np.frombuffer(names.buffers()[1], np.int64)[: len(names) + 1] if len(names) else _NONE

    @classmethod
    def of(cls, names: pa.Array, *, source: str = "") -> NameTable:
        """Index names in memory."""
        import pyarrow.compute as pc  # here, because its functions are made at import, and a stored index needs none

        bucket = buckets(names.to_pylist(), len(names))
        by_hash = np.argsort(bucket, kind="stable")
        columns = {
            "bucket": np.searchsorted(bucket[by_hash], np.arange(len(names))),
            "by_hash": by_hash,
            "by_name": pc.sort_indices(names).to_numpy(),
        }
        return cls(names, {name: column.astype(np.uint32) for name, column in columns.items()}, source=source)

    def __len__(self) -> int:
        return len(self._names)

    def digest(self) -> bytes:
        """Return a hash of the names in their order."""
        return hashlib.sha256(json.dumps(self._names.to_pylist()).encode()).digest()

    def names(self, numbers: np.ndarray) -> pa.Array:
        """Return the names of some numbers."""
        self._verify("offsets", numbers, numbers + 2)
        self._verify("text", self._offsets[numbers], self._offsets[numbers + 1])
        # pa.array would import pandas where it is installed, which takes longer than opening a model.
        data = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
        return self._names.take(pa.Array.from_buffers(pa.int64(), len(numbers), [None, data]))

    def find(self, names: Sequence[str]) -> np.ndarray:
        """Return the number of each name, -1 where there is none.

        The result is int64 (N,). A name that occurs twice has the lower number.
        """
        numbers = np.full(len(names), -1, np.int64)
        if not len(self):
            return numbers
        bucket = buckets(names, len(self))
        row, end = self._begins(bucket), self._begins(bucket + 1)
        left = np.flatnonzero(row < end)
        while len(left):
            found = self._numbers("by_hash", row[left])
            # Names of one bucket need not be equal, so the text decides.
            pairs = zip(left.tolist(), self.names(found).to_pylist(), strict=True)
            right = np.fromiter((names[i] == text for i, text in pairs), bool, len(left))
            numbers[left[right]] = found[right]
            left = left[~right]
            row[left] += 1
            left = left[row[left] < end[left]]
        return numbers

    def prefixed(self, prefix: str, limit: int | None = None) -> np.ndarray:
        """Return the numbers of names with a prefix, by their bytes.

        Args:
            prefix: of the names.
            limit: the most that are returned; None: all.
        """
        data = prefix.encode("utf-8", "surrogatepass")
        first = bisect_left(range(len(self)), data, key=self._bytes)
        last = bisect_right(range(len(self)), data, lo=first, key=lambda row: self._bytes(row)[: len(data)])
        return self._numbers("by_name", np.arange(first, last if limit is None else min(last, first + limit)))

    def _bytes(self, row: int) -> bytes:
        """Return a name by its row in the order, as UTF-8."""
        name: str = self.names(self._numbers("by_name", np.array([row])))[0].as_py()
        return name.encode()

    def _begins(self, bucket: np.ndarray) -> np.ndarray:
        """Return the rows of ``by_hash`` at which buckets begin."""
        rows = np.full(len(bucket), len(self), np.int64)
        inside = bucket < len(self)
        rows[inside] = self._numbers("bucket", bucket[inside])
        if (rows > len(self)).any():
            raise self._damaged("a bucket begins behind the end")
        return rows

    def _numbers(self, column: str, rows: np.ndarray) -> np.ndarray:
        """Return some values of a column of numbers: int64."""
        self._verify(column, rows, rows + 1)
        values: np.ndarray = self._columns[column][rows].astype(np.int64)
        return values

    def _verify(self, part: str, begin: np.ndarray, end: np.ndarray) -> None:
        """Verify items of a part of the file before their use.

        Names in memory need none.
        """

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._source}: {what}")


class MappedNames(NameTable):
    """Index in a file, of which look-ups read a few blocks.

    Args:
        path: of the file.
        digests: SHA-256 of its blocks, one after the other.
        counts: entities of each partition, which the index must have.
        source: path or URL, for messages.
        advice: what to do about a damaged file.

    Raises:
        FormatError: the file is damaged, or belongs to other entities.
    """

    def __init__(self, path: Path, digests: bytes, *, counts: Sequence[int], source: str, advice: str) -> None:
        self._source, self._advice = source, advice
        try:
            self._file = os.open(path, os.O_RDONLY)
            self._release = weakref.finalize(self, os.close, self._file)
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            raise self._damaged(f"cannot be read: {error.strerror}") from None
        if len(digests) != _DIGEST * -(-self._size // BLOCK) or not digests:
            raise self._damaged(f"has {self._size} bytes, which the hashes of its blocks do not fit")
        self._digests = digests
        self._verified = np.zeros(len(digests) // _DIGEST, bool)
        self._verify_bytes(np.array([0, self._size - 1]), np.array([1, self._size]))
        names, columns, found = self._open(path)
        if found != list(counts):
            raise self._damaged(f"is of partitions of {_shown(found)} entities, the vectors of {_shown(counts)}")
        super().__init__(names, columns, source=source)

    def digest(self) -> bytes:
        """Return a hash of the names in their order, without reading them."""
        return hashlib.sha256(self._digests).digest()

    def _open(self, path: Path) -> tuple[pa.Array, dict[str, np.ndarray], list[int]]:
        """Map the file; return its columns and the counts of its partitions."""
        try:
            mapped = pa.memory_map(str(path))
            base = mapped.read_buffer(mapped.size()).address
            mapped.seek(0)
            batch = pa.ipc.open_file(mapped).get_batch(0)
            counts = _counts(batch)
        except (pa.ArrowException, ValueError, LookupError, TypeError, OSError) as error:
            raise self._damaged(str(error)) from None
        names, *numbers = batch.columns
        buffers = [*names.buffers()[1:], *(column.buffers()[1] for column in numbers)]
        starts = [buffer.address - base for buffer in buffers]
        self._parts = dict(zip(_WIDTHS, zip(starts, _WIDTHS.values(), strict=True), strict=True))
        stop = max(start + len(buffer) for start, buffer in zip(starts, buffers, strict=True))
        # What Arrow read to find the columns is verified, too.
        self._verify_bytes(np.array([0, stop]), np.array([min(starts), self._size]))
        columns = {name: np.frombuffer(data, np.uint32) for name, data in zip(NUMBERS, buffers[2:], strict=True)}
        return names, columns, counts

    def _verify(self, part: str, begin: np.ndarray, end: np.ndarray) -> None:
        start, width = self._parts[part]
        self._verify_bytes(start + width * begin, start + width * end)

    def _verify_bytes(self, begin: np.ndarray, end: np.ndarray) -> None:
        """Verify the blocks of some ranges of bytes, each once."""
        begin, end = begin[end > begin], end[end > begin]
        if not len(begin):
            return
        first, last = begin // BLOCK, (end - 1) // BLOCK
        if first.min() < 0 or last.max() >= len(self._verified):
            raise self._damaged("refers to bytes beyond its end")
        if self._verified[first].all() and self._verified[last].all() and (last - first).max() <= 1:
            return
        wide = zip(first[last > first].tolist(), last[last > first].tolist(), strict=True)
        blocks = np.unique(np.concatenate([first, *(np.arange(low, high + 1) for low, high in wide)]))
        for block in blocks[~self._verified[blocks]].tolist():
            self._verify_block(block)

    def _verify_block(self, block: int) -> None:
        digest = hashlib.sha256(os.pread(self._file, BLOCK, block * BLOCK)).digest()
        if digest != self._digests[block * _DIGEST : (block + 1) * _DIGEST]:
            raise self._damaged(f"block {block} of {BLOCK} bytes is not what was recorded when it was written")
        self._verified[block] = True

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._source}: {what}; {self._advice}")


def write_index(
    path: Path,
    digests: Path,
    *,
    counts: Sequence[int],
    offsets: np.ndarray,
    text: np.ndarray,
    numbers: Sequence[np.ndarray],
) -> None:
    """Write an index and the hashes of its blocks.

    The arrays may be mapped from files: none is copied into memory.

    Args:
        path: of the index.
        digests: path of the hashes.
        counts: entities of each partition.
        offsets: int64 (N + 1,), where the names begin and end in the text.
        text: uint8, the names one after the other, as UTF-8.
        numbers: uint32 (N,) each, in the order of ``NUMBERS``.
    """
    names = pa.Array.from_buffers(
        pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
    columns = [names, *(pa.Array.from_buffers(pa.uint32(), len(names), [None, pa.py_buffer(c)]) for c in numbers)]
    fields = [
        pa.field(name, column.type, nullable=False) for name, column in zip(("name", *NUMBERS), columns, strict=True)
    ]
    facts = json.dumps({"format": FORMAT, "counts": list(counts)}, sort_keys=True)
    batch = pa.record_batch(columns, schema=pa.schema(fields, metadata={"pbg": facts}))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    digests.write_bytes(b"".join(hashlib.sha256(block).digest() for block in _blocks(path)))


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def _counts(batch: pa.RecordBatch) -> list[int]:
    """Return the counts of the partitions in an index.

    Raises:
        ValueError: it has another form.
        LookupError: the same.
        TypeError: the same.
    """
    types = {field.name: str(field.type) for field in batch.schema}
    facts = json.loads(batch.schema.metadata[b"pbg"])
    if facts["format"] != FORMAT or types != {"name": "large_string"} | dict.fromkeys(NUMBERS, "uint32"):
        raise ValueError(f"is of another form than {FORMAT!r}, which this version reads")
    counts: list[int] = facts["counts"]
    return counts


def _shown(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts[:_SHOWN])) + (", ..." if len(counts) > _SHOWN else "")
