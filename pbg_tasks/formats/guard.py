"""Opening HDF5 files that anyone may have written: nothing outside the file is followed, nothing large is believed.

h5py follows external links, external storage and virtual datasets into other local files by default, and a file of a
kilobyte can declare a dataset of a terabyte. Everything is looked at before a byte of data is allocated.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import h5py

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT_VERSION = 1
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_MAX_RATIO = 2000  # gzip itself cannot pack better than about 1000 to 1


@contextmanager
def open_foreign(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file of format version 1 for reading, once all of it was found harmless.

    Raises:
        FormatError: not HDF5, truncated, of another format version, linked to other files, or of impossible size.
    """
    _check_signature(path)
    try:
        with h5py.File(path, "r") as file:
            _check_version(path, file)
            _check_group(path, file, path.stat().st_size)
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: damaged or truncated HDF5 file: {' '.join(str(error).split())}") from None


def _check_signature(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_SIGNATURE))
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    if start != _SIGNATURE:
        raise FormatError(f"{path}: not an HDF5 file")


def _check_version(path: Path, file: h5py.File) -> None:
    version = file.attrs.get("format_version")
    if version is None:
        raise FormatError(f"{path}: no format_version attribute: not a file of PBG's formats")
    if int(version) != FORMAT_VERSION:
        raise FormatError(f"{path}: format_version {version}; this program reads version {FORMAT_VERSION}")


def _check_group(path: Path, group: h5py.Group, size: int) -> None:
    for name in group:
        where = f"{path}: {group.name.rstrip('/')}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise FormatError(f"{where}: is a link; only data inside the file is read")
        item = group[name]
        if isinstance(item, h5py.Group):
            _check_group(path, item, size)
        else:
            _check_dataset(where, item, size)


def _check_dataset(where: str, item: object, size: int) -> None:
    if not isinstance(item, h5py.Dataset):
        raise FormatError(f"{where}: neither a group nor a dataset")
    if item.is_virtual or item.external:
        raise FormatError(f"{where}: its data lies in other files; only data inside the file is read")
    if item.dtype.kind not in "iufVS" or item.dtype.hasobject:
        raise FormatError(f"{where}: unexpected type {item.dtype}")
    plist = item.id.get_create_plist()
    filters = {plist.get_filter(index)[0] for index in range(plist.get_nfilters())}
    if filters - _FILTERS:
        raise FormatError(f"{where}: unknown compression {sorted(filters - _FILTERS)}")
    limit = size * (_MAX_RATIO if filters else 1)
    if item.nbytes > limit:
        raise FormatError(f"{where}: declares {item.nbytes} bytes in a file of {size}")


def dataset(path: Path, group: h5py.Group, name: str, *, ndim: int) -> h5py.Dataset:
    """Return a dataset of ``ndim`` dimensions.

    Raises:
        FormatError: it is missing or has another shape.
    """
    item = group.get(name)
    if not isinstance(item, h5py.Dataset):
        raise FormatError(f"{path}: dataset {name!r} is missing")
    if item.ndim != ndim:
        raise FormatError(f"{path}: dataset {name!r} has shape {item.shape}, expected {ndim} dimensions")
    return item
