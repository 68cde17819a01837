"""Text files of a snapshot as plain, checked local files.

Every checksum, length and line is checked. DuckDB's own readers do not check the CRC of a gzip file, take a zstd file
that was cut off for a shorter one, and lose a line of many megabytes at the end of a file. So it gets plain text only,
made once a task. It also reads plain text faster: by several threads, and without decompressing or downloading it again
for each query.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import InputError
from pbg_tasks.prepare.connection import scratch_of
from pbg_tasks.progress import Progress
from pbg_tasks.storage.columnar import check_unchanged, filesystem_for, read_errors
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import SnapshotFile

MAX_LINE_BYTES = 1 << 20
_CHUNK = MAX_LINE_BYTES  # not larger, so that no line within a chunk is too long
COMPRESSIONS = {"gz": "gzip", "gzip": "gzip", "bz2": "bz2", "zst": "zstd", "zstd": "zstd"}
"""Compressions of text by the ends of names."""


def plain_texts(connection: duckdb.DuckDBPyConnection, files: Sequence[SnapshotFile]) -> dict[str, str]:
    """Check text files; copy compressed and remote ones to scratch.

    Args:
        connection: in whose scratch directory the copies are made; an existing copy is not made again.
        files: as they were planned.

    Returns:
        The local path of each file's text, by the file's URI.

    Raises:
        InputError: a file is damaged, cut off or followed by other bytes, changed since it was planned, or has a line
            of more than ``MAX_LINE_BYTES``.
        StorageError: the store failed while it was read.
        ResourceError: scratch has no room for the text.
    """
    copies = {file.uri: _copy_of(connection, file) for file in files if _compression(file.uri) or "://" in file.uri}
    fresh = [file for file in files if file.uri not in copies or not copies[file.uri].exists()]
    if fresh:
        ((threads,),) = connection.execute("SELECT current_setting('threads')::INTEGER").fetchall()
        # Several tasks of a night read the text, and each reports its own end.
        with Progress("read text", total=sum(file.size for file in fresh), unit="B", ends=False) as progress:
            in_parallel(lambda file: _read(file, copies.get(file.uri), progress), fresh, threads)
    return {file.uri: str(copies.get(file.uri, file.uri)) for file in files}


def remove_copies(connection: duckdb.DuckDBPyConnection, files: Sequence[SnapshotFile]) -> None:
    """Remove the copies of files that are not read again."""
    for file in files:
        _copy_of(connection, file).unlink(missing_ok=True)


def copy_name(file: SnapshotFile) -> str:
    """Return the name of a file's copy.

    Messages of DuckDB about the copy are recognized by it.
    """
    return f"{hashlib.sha256(f'{file.uri} {file.version}'.encode()).hexdigest()[:32]}.txt"


def line_too_long(uri: str, line: int) -> InputError:
    """Return the error for a line beyond ``MAX_LINE_BYTES``."""
    return InputError(
        f"{uri}, line {line}: is longer than {MAX_LINE_BYTES} bytes; split what it holds, or end its lines with line "
        "breaks"
    )


def _copy_of(connection: duckdb.DuckDBPyConnection, file: SnapshotFile) -> Path:
    return scratch_of(connection) / "text" / copy_name(file)


def _compression(uri: str) -> str | None:
    return COMPRESSIONS.get(uri.rpartition(".")[2].lower())


def _read(file: SnapshotFile, copy: Path | None, progress: Progress) -> None:
    """Read a file to its end, and copy it where required.

    The copy appears only when the file was found whole.
    """
    lines = _Lines(file.uri)
    filesystem = filesystem_for(file.uri)
    with read_errors(file.uri, "read"), filesystem.open(file.uri, "rb", cache_type="readahead") as raw:
        chunks = _chunks(_Source(raw, file.uri, progress), file.uri)
        if copy is None:
            for data in chunks:
                lines.check(data)
            return
        partial = copy.with_suffix(".partial")
        with disk_errors(partial):
            copy.parent.mkdir(exist_ok=True)
            with partial.open("wb") as text:
                for data in chunks:
                    lines.check(data)
                    text.write(data)
    check_unchanged(file.uri, file.size, file.version)
    partial.replace(copy)


def _chunks(source: _Source, uri: str) -> Iterator[bytes]:
    """Yield a file's text in chunks of at most ``_CHUNK``.

    Arrow's streams check every member of a gzip file and every frame of a zstd one. Plain text does without them.

    Raises:
        InputError: the file is damaged, cut off, or followed by other bytes.
    """
    compression = _compression(uri)
    if compression is None:
        while data := source.read(_CHUNK):
            yield data
        return
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), compression) as stream:
            while data := stream.read(_CHUNK):
                yield data
    except (OSError, pa.ArrowException) as error:  # Arrow's own: errors of the store are this package's already
        raise InputError(f"{uri}: cannot be read: {error}; the file is damaged, write it again") from None


class _Source(io.RawIOBase):
    """File for Arrow, with the store's errors as errors of this package.

    Errors of a decoder are different ones, so that the two cannot be confused.
    """

    def __init__(self, raw: Any, uri: str, progress: Progress) -> None:  # noqa: ANN401 - files of several libraries
        super().__init__()
        self._raw, self._uri = raw, uri
        self._progress = progress

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes.

        Raises:
            StorageError: the store failed.
        """
        with read_errors(self._uri, "read"):
            data: bytes = self._raw.read(size)
        self._progress.advance(len(data))
        return data


class _Lines:
    """Check that no line is too long.

    It comes before a small file has unpacked to one of gigabytes.

    Args:
        uri: of the file, for the message.
    """

    def __init__(self, uri: str) -> None:
        self._uri, self._line = uri, 1
        self._length = 0

    def check(self, data: bytes) -> None:
        """Check the next bytes, at most ``_CHUNK``.

        Raises:
            InputError: a line that ends in them, or does not end yet, is too long.
        """
        import numpy as np

        breaks = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        self._length += min(breaks, default=len(data))
        if self._length > MAX_LINE_BYTES:
            raise line_too_long(self._uri, self._line)
        if breaks:
            self._length = len(data) - 1 - max(data.rfind(b"\n"), data.rfind(b"\r"))
            # `bytes.count` takes ten times as long where lines are short.
            self._line += int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
