"""Archives as data sets are published, and the tab-separated files in them."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zstandard

from pbg_tasks.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_WINDOW = 1 << 27  # what `zstd --long=27` needs


def unpack(archive: Path, directory: Path) -> None:
    """Unpack an archive below a directory.

    It is a ``.tar.zst``, ``.tar.gz``, ``.tgz`` or ``.zip``; links and paths outside are refused.

    Raises:
        InputError: it is none of these, or damaged.
    """
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as members:
                members.extractall(directory)  # noqa: S202 - zipfile drops drive names and ".." by itself
        else:
            with _open_tar(archive) as files:
                _extract(files, directory)
    except (tarfile.TarError, zipfile.BadZipFile, zstandard.ZstdError, EOFError) as error:
        raise InputError(f"{archive}: cannot be unpacked: {error}") from None


def _extract(files: tarfile.TarFile, directory: Path) -> None:
    """Write the files of an archive; refuse links and paths outside."""
    # ``extractall(filter="data")`` came with Python 3.11.4, and Debian 12 has 3.11.2.
    root = directory.resolve()
    for member in files:
        path = (root / member.name).resolve()
        if not path.is_relative_to(root) or not (member.isfile() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name!r} is a link, or outside of the directory")
        (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
        content = files.extractfile(member)
        if content is not None:
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)


@contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.name.endswith(".zst"):
        with tarfile.open(archive) as files:
            yield files
        return
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    with (
        archive.open("rb") as raw,
        decompressor.stream_reader(raw) as stream,
        tarfile.open(fileobj=stream, mode="r|") as files,
    ):
        yield files


def read_rows(path: Path, *, columns: int | tuple[int, ...]) -> list[list[str]]:
    """Return the cells of every line of a tab-separated file.

    The file may be compressed (``.gz``).

    Args:
        path: of the file.
        columns: number of cells that a line has, or may have.

    Raises:
        InputError: the file is missing or damaged, or a line has another number of cells.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    allowed = (columns,) if isinstance(columns, int) else columns
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            text = file.read().removesuffix("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    rows = [line.split("\t") for line in text.split("\n")] if text else []
    for number, row in enumerate(rows, 1):
        if len(row) not in allowed:
            expected = " or ".join(map(str, allowed))
            raise InputError(f"{path}:{number}: has {len(row)} cells separated by tabs, expected {expected}")
    return rows
