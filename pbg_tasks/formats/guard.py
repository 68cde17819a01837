"""Opening of HDF5 files that any program may have written.

No byte of such a file reaches the HDF5 library of this process. A separate process finds the places of a file's numbers
(``formats.layout``, ``formats.examiner``), and this one reads them from there (``formats.stored``). Files that this
process wrote, or whose hash it compared with a manifest's, are examined in this process: that is the same work without
the other process.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.examiner import EXAMINER
from pbg_tasks.formats.hdf5_header import Hdf5Header
from pbg_tasks.formats.layout import FORMAT_VERSION, Layout, read_layout
from pbg_tasks.formats.stored import Stored
from pbg_tasks.storage.files import open_to_read
from pbg_tasks.storage.vouched import Identity, is_vouched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.formats.frames import Message

__all__ = ["FORMAT_VERSION", "OpenFile", "dataset", "open_foreign"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_KNOWN_LAYOUTS = 256  # most of them less than a kilobyte
_LAYOUT_SHARE = 50  # at most one in this many bytes of a file is not of its numbers


class OpenFile:
    """HDF5 file that is open for reading.

    Args:
        name: of the file in messages.
        layout: of the file.
        file: its descriptor; -1 where the file is not on this machine.
        size: its bytes.
        vouched: identity of a file whose bytes are known to be right; None for other files.

    Attributes:
        vouched: same.
        name: of the file in messages.
        attrs: attributes of the file itself.
        groups: names of its groups.
        datasets: its datasets, by name.

    Raises:
        FormatError: the layout does not fit the file.
    """

    def __init__(self, name: str, layout: Layout, file: int, size: int, *, vouched: Identity | None = None) -> None:
        self.name, self.vouched = name, vouched
        self.attrs: Mapping[str, str | int | float] = layout.attributes
        self.groups = frozenset(layout.groups)
        self.datasets = {
            each: Stored(name, each, facts, layout.blobs, file, size) for each, facts in layout.datasets.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self.datasets or name in self.groups

    def sums(self, blob: np.ndarray, shapes: Sequence[tuple[int, ...]], source: str) -> list[np.ndarray] | None:
        """Read the sums in an optimizer's blob.

        If no hash vouches for the file, the separate process reads them.

        Raises:
            FormatError: the blob is not a plain state dict of these shapes, or takes too much memory or time.
        """
        if self.vouched is not None:
            from pbg_tasks.formats.optimizer import state_sums

            return state_sums(blob.tobytes(), shapes, source=source)
        body = {"source": source, "shapes": [list(shape) for shape in shapes]}
        answer = EXAMINER.ask("sums", source, body, [blob.tobytes()], size=blob.nbytes)
        if not answer.body.get("found"):
            return None
        try:
            return [
                np.frombuffer(data, np.float32).reshape(shape).copy()
                for data, shape in zip(answer.blobs, shapes, strict=True)
            ]
        except ValueError:
            raise FormatError(f"{source}: not readable") from None


@contextmanager
def open_foreign(path: Path | Hdf5Header) -> Iterator[OpenFile]:
    """Examine and open an HDF5 file of format version 1.

    Args:
        path: of the file, or some parts of the file.

    Raises:
        FormatError: missing, not HDF5, truncated, of another format version, linked to other files, holding types or
            filters that none of PBG's formats uses, declaring more data than its size can hold, crashing the HDF5
            library or keeping it busy, or changed while it was read.
        ResourceError: the process that examines it cannot be started, or the machine ended it.
    """
    if isinstance(path, Hdf5Header):
        yield _glimpsed(path)
        return
    try:
        file = open_to_read(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        identity = Identity.of(os.fstat(file))
        _check_signature(path, file)
        vouched = is_vouched(identity)
        layout = _own_layout(path, identity) if vouched else _examined(path, identity)
        yield OpenFile(str(path), layout, file, identity.size, vouched=identity if vouched else None)
        now = Identity.of(os.fstat(file))
        # A local store that takes a file of this process gives it a new time, and its bytes stay the same.
        if now != (identity._replace(modified_ns=now.modified_ns) if vouched else identity):
            raise FormatError(f"{path}: was changed while it was read")
    finally:
        os.close(file)


@functools.lru_cache(maxsize=_KNOWN_LAYOUTS)
def _own_layout(path: Path, identity: Identity) -> Layout:
    """Return the layout of a vouched file, kept for the next reader."""
    return read_layout(path, identity.size)


def dataset(file: OpenFile, name: str, *, kinds: str, shape: tuple[int | None, ...]) -> Stored:
    """Return a dataset after checking its type and shape.

    The caller may then allocate memory for it.

    Args:
        file: opened by ``open_foreign``.
        name: path of the dataset.
        kinds: numpy's letters of the kinds of type it may have: ``i`` and ``u`` integers, ``f`` floats, ``V`` bytes.
        shape: one entry a dimension, None for any length.

    Raises:
        FormatError: it is missing or has another type or shape.
    """
    where = f"{file.name}: dataset {name!r}"
    item = file.datasets.get(name)
    if item is None:
        raise FormatError(f"{where} is missing")
    if item.dtype.kind not in kinds:
        raise FormatError(f"{where} is of type {item.dtype}, expected one of kind {', '.join(kinds)}")
    fits = len(item.shape) == len(shape) and all(
        want in {None, have} for want, have in zip(shape, item.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise FormatError(f"{where} has shape {item.shape}, expected ({wanted})")
    return item


def _check_signature(path: Path, file: int) -> None:
    """Refuse a file that does not begin with HDF5's signature.

    HDF5 would also accept a signature further on, which no file of PBG's formats has.
    """
    try:
        start = os.pread(file, len(_SIGNATURE), 0)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    if start != _SIGNATURE:
        raise FormatError(f"{path}: not an HDF5 file")


def _examined(path: Path, identity: Identity) -> Layout:
    body = {"path": str(path.resolve())}
    answer = EXAMINER.ask("layout", str(path), body, size=identity.size // _LAYOUT_SHARE)
    if answer.body.get("identity") != list(identity):
        raise FormatError(f"{path}: was replaced while it was read")
    return _layout(str(path), answer)


def _glimpsed(file: Hdf5Header) -> OpenFile:
    name = str(file)
    file.seek(0)
    start = file.read(len(_SIGNATURE))
    if start != _SIGNATURE:
        raise FormatError(f"{name}: not an HDF5 file")
    body = {"name": name, "size": file.size, "parts": list(file.parts)}
    answer = EXAMINER.ask("layout", name, body, list(file.parts.values()), size=0)
    missing = answer.body.get("missing")
    if missing is not None:
        file.miss(missing)
        raise FormatError(f"{name}: more of it is needed")
    return OpenFile(name, _layout(name, answer), -1, file.size)


def _layout(name: str, answer: Message) -> Layout:
    """Return the other process's answer as a layout, after checking it."""
    attributes, groups, datasets = (answer.body.get(each) for each in ("attributes", "groups", "datasets"))
    if (
        not (isinstance(attributes, dict) and isinstance(groups, list) and isinstance(datasets, dict))
        or not all(isinstance(value, str | int | float) for value in attributes.values())
        or not all(isinstance(value, str) for value in groups)
        or not all(isinstance(value, dict) for value in datasets.values())
    ):
        raise FormatError(f"{name}: damaged or truncated HDF5 file: its description makes no sense")
    return Layout(attributes, groups, datasets, answer.blobs)
