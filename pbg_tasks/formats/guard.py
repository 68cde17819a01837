"""Opening HDF5 files that anyone may have written: nothing outside the file is followed, nothing large is believed.

h5py follows external links, external storage and virtual datasets into other local files by default, and a file of a
kilobyte can declare a dataset of a terabyte. Everything is looked at before a byte of data is allocated.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import RawIOBase

FORMAT_VERSION = 1
BYTES = np.dtype("V1")  # the opaque type of PBG's blobs

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_MAX_RATIO = 2000  # deflate itself cannot pack better than 1032 to 1
# What HDF5 and h5py raise when a file's structure makes no sense.
_DAMAGE = (OSError, RuntimeError, LookupError, TypeError, ValueError, OverflowError)


@contextmanager
def open_foreign(path: Path | RawIOBase) -> Iterator[h5py.File]:
    """Open an HDF5 file of format version 1 (its path, or itself) for reading, once all of it was found harmless.

    Raises:
        FormatError: missing, not HDF5, truncated, of another format version, linked to other files, holding types or
            filters that none of our formats uses, or declaring more data than its size can hold.
    """
    size = _check_signature(path)
    try:
        with h5py.File(path, "r") as file:
            _check_version(path, file)
            _check_objects(path, file, size)
            yield file
    except _DAMAGE as error:
        raise FormatError(f"{path}: damaged or truncated HDF5 file: {' '.join(str(error).split())[:300]}") from None


def dataset(file: h5py.File, name: str, *, kinds: str, shape: tuple[int | None, ...]) -> h5py.Dataset:
    """Return a dataset whose type and shape are what the caller goes on to allocate.

    Args:
        file: opened by ``open_foreign``.
        name: path of the dataset.
        kinds: numpy's letters of the kinds of type it may have: ``i`` and ``u`` integers, ``f`` floats, ``V`` bytes.
        shape: one entry a dimension, None for any length.

    Raises:
        FormatError: it is missing or has another type or shape.
    """
    where = f"{file.filename}: dataset {name!r}"
    item = file.get(name)
    if not isinstance(item, h5py.Dataset):
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


def _check_signature(path: Path | RawIOBase) -> int:
    """Return the file's size; HDF5 would also accept a signature further on, which none of our formats has."""
    try:
        if isinstance(path, Path):
            with path.open("rb", buffering=0) as file:
                start, size = _start_and_size(file)
        else:
            start, size = _start_and_size(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    if start != _SIGNATURE:
        raise FormatError(f"{path}: not an HDF5 file")
    return size


def _start_and_size(file: RawIOBase) -> tuple[bytes | None, int]:
    file.seek(0)
    return file.read(len(_SIGNATURE)), file.seek(0, os.SEEK_END)


def _check_version(path: Path | RawIOBase, file: h5py.File) -> None:
    version = file.attrs.get("format_version")
    if version is None:
        raise FormatError(f"{path}: no attribute format_version, so not a file of PBG's formats")
    if np.ndim(version) or np.asarray(version).dtype.kind not in "iu" or int(version) != FORMAT_VERSION:
        raise FormatError(f"{path}: format_version is {version!s:.40}; this program reads version {FORMAT_VERSION}")


def _check_objects(path: Path | RawIOBase, file: h5py.File, size: int) -> None:
    """Look at every object once, by address: hard links may form a cycle."""
    seen = {_address(file)}
    groups = [file["/"]]
    while groups:
        group = groups.pop()
        for name in group:
            where = f"{path}: {group.name.rstrip('/')}/{name}"
            if type(group.get(name, getlink=True)) is not h5py.HardLink:
                raise FormatError(f"{where} is a link; only data inside the file itself is read")
            item = group[name]
            if _address(item) in seen:
                continue
            seen.add(_address(item))
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif isinstance(item, h5py.Dataset):
                _check_dataset(where, item, size)
            else:
                raise FormatError(f"{where} is neither a group nor a dataset")


def _address(item: h5py.HLObject) -> int:
    address: int = h5py.h5o.get_info(item.id).addr
    return address


def _check_dataset(where: str, item: h5py.Dataset, size: int) -> None:
    if item.is_virtual or item.external:
        raise FormatError(f"{where} keeps its data in other files; only data inside the file itself is read")
    if item.shape is None or (item.dtype.kind not in "iuf" and item.dtype != BYTES):
        raise FormatError(f"{where} is of type {item.dtype}; PBG's formats hold integers, floats and bytes")
    plist = item.id.get_create_plist()
    filters = {plist.get_filter(index)[0] for index in range(plist.get_nfilters())}
    if filters - _FILTERS:
        raise FormatError(f"{where} uses the HDF5 filters {sorted(filters - _FILTERS)}; use gzip or none")
    limit = size * (_MAX_RATIO if filters else 1)
    declared = max(item.nbytes, _chunk_bytes(item))
    if declared > limit:
        raise FormatError(f"{where} declares {declared} bytes, which a file of {size} bytes cannot hold")


def _chunk_bytes(item: h5py.Dataset) -> int:
    """Return what reading one stored chunk allocates; an empty dataset may declare any chunk, as PBG's do."""
    if item.chunks is None or item.id.get_storage_size() == 0:
        return 0
    return int(math.prod(item.chunks)) * int(item.dtype.itemsize)
