"""Numbers of an HDF5 dataset, read without the HDF5 library.

They are read from their places in the file. The places come from ``formats.layout``, perhaps from a process that runs a
hostile file's code: each is checked here against the file's size, so that a wrong place gives wrong numbers and nothing
worse.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import zlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPE = re.compile(r"[<>|][iuf][1248]|\|V1")
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3  # HDF5's numbers for its filters
_DEFLATE_RATIO = 1032  # zlib compresses to at best 1 in this
_FLETCHER = 0xFFFF  # modulus of its sums
_CHECKSUM = 4  # bytes after a chunk
_MAX_RATIO = 2000
_MOST_NUMBERS = (1 << 60) - 1  # most numbers of 8 bytes; numpy refuses a longer shape, even if one of its lengths is 0
_READ = 1 << 30  # Linux reads at most 2 GiB in one call


class _Chunk(NamedTuple):
    """Stored chunk: its first element and its place in the file.

    Attributes:
        start: index of its first element.
        offset: of its first byte in the file.
        size: bytes.
        skipped: bits of the filters that were not applied to it.
    """

    start: tuple[int, ...]
    offset: int
    size: int
    skipped: int


class Stored:
    """Dataset of an open file.

    Args:
        source: name of the file in messages.
        name: of the dataset.
        facts: its entry of ``Layout.datasets``.
        blobs: of the layout.
        file: descriptor of the file.
        size: bytes of the file.

    Attributes:
        source: name of the file in messages.
        dtype: of the stored numbers.
        shape: of the dataset.
        chunks: shape of a chunk; None where there are none.

    Raises:
        FormatError: the facts do not fit the file.
    """

    def __init__(
        self, source: str, name: str, facts: dict[str, Any], blobs: Sequence[bytes], file: int, size: int
    ) -> None:
        self.source, self._name = source, name
        self._file, self._file_size = file, size
        try:
            self.dtype = _dtype(facts["dtype"])
            self.shape = _naturals(facts["shape"])
            self.chunks = None if facts["chunks"] is None else _naturals(facts["chunks"])
            self._fill = np.frombuffer(bytes.fromhex(facts["fill"]), self.dtype)[0]
            self._filters = [(int(code), int(value)) for code, value in facts["filters"]]
            self.size = math.prod(self.shape)
            self.nbytes = self.size * self.dtype.itemsize
            self._offset = None if "offset" not in facts else int(facts["offset"])
            self._inline = None if "inline" not in facts else blobs[facts["inline"]]
            self._table = self._chunk_table(blobs[facts["table"]]) if "table" in facts else []
        except (LookupError, TypeError, ValueError, OverflowError):
            raise self._damaged("its description makes no sense") from None
        self._check_places()
        self._kept: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def place(self) -> int | None:
        """Offset of the numbers in the file, where they are one stretch.

        None where they are in several pieces or compressed.
        """
        return self._offset if self.nbytes else None

    def read_rows(self, start: int, out: np.ndarray) -> None:
        """Fill ``out`` from row ``start`` on, converting to its type.

        Raises:
            FormatError: the file is damaged or shorter than it was.
        """
        if not out.size:
            return
        if self._offset is not None:
            self._stretch(self._offset + start * self._row_bytes, out)
        elif self._inline is not None:
            _convert(np.frombuffer(self._inline, self.dtype).reshape(self.shape)[start : start + len(out)], out)
        else:
            self._from_chunks(start, out)

    def read_some(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Fill ``out`` with some rows, converting to its type.

        Args:
            rows: int64 (n,), ascending.
            out: (n, ...), contiguous.

        Raises:
            FormatError: the file is damaged or shorter than it was.
        """
        if not out.size:
            return
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1  # between them are stretches of the file
        stretches = itertools.pairwise([0, *cuts.tolist(), len(rows)])
        if self._offset is None or out.dtype != self.dtype:
            for first, stop in stretches:
                self.read_rows(int(rows[first]), out[first:stop])
            return
        # Most stretches are one row: what is known of all of them is not asked for each.
        place, size = self._offset, self._row_bytes
        starts, data = rows.tolist(), _bytes_of(out)
        for first, stop in stretches:
            self._fetch(place + starts[first] * size, data[first * size : stop * size])

    def whole(self) -> np.ndarray:
        """Return the whole dataset in its own type.

        Raises:
            FormatError: the file is damaged or shorter than it was.
        """
        out = np.empty(self.shape, self.dtype)
        if self.shape:
            self.read_rows(0, out)
        else:
            self._scalar(out)
        return out

    def mapped(self, place: int) -> np.ndarray:
        """Map the numbers at ``place`` into memory, read-only.

        The array has the name of the file.
        """
        with open(self.source, "rb", opener=lambda *_: os.dup(self._file)) as file:
            return np.memmap(file, dtype=self.dtype, mode="r", offset=place, shape=self.shape)

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def _scalar(self, out: np.ndarray) -> None:
        if self._offset is not None:
            self._stretch(self._offset, out.reshape(1))
        else:
            out[...] = self._fill if self._inline is None else np.frombuffer(self._inline, self.dtype)[0]

    def _chunk_table(self, data: bytes) -> list[_Chunk]:
        if self.chunks is None or len(self.chunks) != len(self.shape) or 0 in self.chunks:
            raise ValueError(self.chunks)
        rank = len(self.shape)
        rows = np.frombuffer(data, "<i8").reshape(-1, rank + 3)
        if len(rows) and rows.min() < 0:
            raise ValueError(rows.min())
        table = [_Chunk(tuple(row[:rank]), *row[rank:]) for row in rows.tolist()]
        return sorted(table)

    def _check_places(self) -> None:
        limit = self._file_size * (_MAX_RATIO if self._filters else 1)
        if self.nbytes > limit or (self._offset is not None and not self._holds(self._offset, self.nbytes)):
            raise self._damaged(f"{self.nbytes} bytes of data do not fit into it")
        if self._inline is not None and len(self._inline) != self.nbytes:
            raise self._damaged("its data have another length than its shape")
        if not self._table or self.chunks is None:
            return
        if any(at % step for chunk in self._table for at, step in zip(chunk.start, self.chunks, strict=True)):
            raise self._damaged("its chunks are not where chunks can be")
        if len({chunk.start for chunk in self._table}) < len(self._table):
            raise self._damaged("it has a chunk twice")
        if any(at >= length for chunk in self._table for at, length in zip(chunk.start, self.shape, strict=True)):
            raise self._damaged("it has chunks beyond its shape")  # HDF5 removes them when a dataset shrinks
        fits = all(self._holds(chunk.offset, chunk.size) for chunk in self._table)
        if not fits or sum(chunk.size for chunk in self._table) > self._file_size:
            raise self._damaged("its chunks do not fit into it")
        most = max(chunk.size for chunk in self._table) * (_DEFLATE_RATIO if self._filters else 1)
        if self._chunk_bytes > most:
            raise self._damaged(f"its chunks are of {self._chunk_bytes} bytes, more than the stored ones can hold")

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self.chunks or ()) * self.dtype.itemsize

    def _holds(self, offset: int, size: int) -> bool:
        return 0 <= offset <= offset + size <= self._file_size

    def _stretch(self, offset: int, out: np.ndarray) -> None:
        """Fill ``out`` with the numbers that are stored from ``offset`` on."""
        if out.dtype == self.dtype and out.flags.c_contiguous:
            self._fetch(offset, _bytes_of(out))
            return
        block = np.empty(out.shape, self.dtype)
        self._fetch(offset, _bytes_of(block))
        _convert(block, out)

    def _fetch(self, offset: int, view: memoryview) -> None:
        while view:
            try:
                count = os.preadv(self._file, [view[:_READ]], offset)
            except OSError as error:
                raise self._damaged(f"cannot be read: {error.strerror}") from None
            if not count:
                raise self._damaged("it ends before its data do")
            view, offset = view[count:], offset + count

    def _from_chunks(self, start: int, out: np.ndarray) -> None:
        """Fill ``out`` from the chunks that hold its rows.

        Chunks that extend beyond its last row are kept unpacked for the next call.
        """
        if self.chunks is None:
            out[...] = self._fill
            return
        stop, height = start + len(out), self.chunks[0]
        if len(self._table) < math.prod(
            -(-length // step) for length, step in zip(self.shape, self.chunks, strict=True)
        ):
            out[...] = self._fill
        kept, self._kept = self._kept, {}
        for index in range(self._first_from(start - height + 1), self._first_from(stop)):
            chunk = self._table[index]
            first = chunk.start[0]
            low, high = max(start, first), min(stop, first + height)
            inner = [slice(at, at + step) for at, step in zip(chunk.start[1:], self.chunks[1:], strict=True)]
            target = out[(slice(low - start, high - start), *inner)]
            if not self._filters and self.chunks[1:] == self.shape[1:]:
                self._stretch(self._plain(chunk) + (low - first) * self._row_bytes, target)
                continue
            block = kept[index] if index in kept else self._unpacked(chunk)
            if first + height > stop:
                self._kept[index] = block
            _convert(block[(slice(low - first, high - first), *map(slice, target.shape[1:]))], target)

    def _first_from(self, row: int) -> int:
        """Return the index of the first stored chunk from ``row`` on."""
        return bisect_left(self._table, row, key=lambda chunk: chunk.start[0])

    def _plain(self, chunk: _Chunk) -> int:
        if chunk.size != self._chunk_bytes:
            raise self._damaged(f"a chunk has {chunk.size} bytes, expected {self._chunk_bytes}")
        return chunk.offset

    def _unpacked(self, chunk: _Chunk) -> np.ndarray:
        raw = np.empty(chunk.size, np.uint8)
        self._fetch(chunk.offset, raw.data)
        data: bytes | memoryview = raw.data
        for index, (code, value) in reversed(list(enumerate(self._filters))):
            if not chunk.skipped >> index & 1:
                data = self._undone(code, value, data)
        if len(data) != self._chunk_bytes:
            raise self._damaged(f"a chunk has {len(data)} bytes, expected {self._chunk_bytes}")
        return np.frombuffer(data, self.dtype).reshape(self.chunks or ())

    def _undone(self, code: int, value: int, data: bytes | memoryview) -> bytes | memoryview:
        if code == _DEFLATE:
            try:
                return zlib.decompressobj().decompress(data, self._chunk_bytes + _CHECKSUM)
            except zlib.error as error:
                raise self._damaged(f"a chunk cannot be unpacked: {error}") from None
        if code == _SHUFFLE:
            if value != self.dtype.itemsize or len(data) % value:
                raise self._damaged("a chunk is shuffled by another length than its numbers have")
            return np.frombuffer(data, np.uint8).reshape(value, -1).T.tobytes()
        if code == _FLETCHER32:
            body, stored = data[:-_CHECKSUM], int.from_bytes(data[-_CHECKSUM:], "little")
            if len(data) < _CHECKSUM or not _same_fletcher32(fletcher32(body), stored):
                raise self._damaged("the checksum of a chunk is wrong")
            return body
        raise self._damaged(f"it uses the HDF5 filter {code}")

    def _damaged(self, reason: str) -> FormatError:
        return FormatError(f"{self.source}: damaged or truncated HDF5 file: dataset {self._name[:200]!r}: {reason}")


def fletcher32(data: bytes | memoryview) -> int:
    """Return HDF5's checksum of some bytes.

    It is Fletcher's, of big-endian words of 16 bits, in uint32. The sums are of whole numbers below 2**53, which
    float64 holds exactly, and matrix products are fast.
    """
    width = 1 << 12
    words = np.frombuffer(bytes(data) + b"\0" * (len(data) % 2), ">u2")
    rows = np.zeros((-(-len(words) // width), width))
    rows.reshape(-1)[rows.size - len(words) :] = words  # zeros before the first word do not change the sums
    sums, weighted = rows.sum(axis=1), rows @ np.arange(width, 0, -1, dtype=np.float64)
    behind = np.arange(len(rows) - 1, -1, -1, dtype=np.float64) * width
    weighted = np.fmod(weighted, _FLETCHER) + np.fmod(sums, _FLETCHER) * np.fmod(behind, _FLETCHER)
    return int(weighted.sum()) % _FLETCHER << 16 | int(sums.sum()) % _FLETCHER


def _same_fletcher32(one: int, other: int) -> bool:
    """Compare two checksums.

    A sum of 65535 and one of 0 are equal in Fletcher's checksum.
    """
    return all((one >> shift & 0xFFFF) % 0xFFFF == (other >> shift & 0xFFFF) % 0xFFFF for shift in (0, 16))


def _dtype(text: str) -> np.dtype:
    if not _TYPE.fullmatch(text):
        raise ValueError(text)
    return np.dtype(text)


def _naturals(values: object) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError(values)
    if math.prod(filter(None, values)) > _MOST_NUMBERS:
        raise ValueError(values)
    return tuple(itertools.chain(values))


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _convert(block: np.ndarray, out: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = block
