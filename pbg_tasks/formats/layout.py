"""Layout of an HDF5 file: the places of its numbers.

It is found with the HDF5 library, and without reading a number. The library is not made for hostile files: one changed
byte can crash it or keep it busy for ever. So this module runs in a separate process for every file that no hash
vouches for (``formats.examiner``), and its result is plain data: names, types, shapes and places in the file, from
which ``formats.stored`` reads the numbers.

h5py follows external links, external storage and virtual datasets into other local files by default, and a file of a
kilobyte can declare a dataset of a terabyte. So all of a file is examined before a byte of data is allocated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from pbg_tasks.errors import FormatError, one_line

if TYPE_CHECKING:
    from io import RawIOBase
    from pathlib import Path

FORMAT_VERSION = 1
BYTES = np.dtype("V1")  # opaque type of PBG's blobs
DEFLATE, SHUFFLE, FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32

_MAX_RATIO = 2000  # deflate itself compresses to at best 1 in 1032
_MAX_TEXT = 1 << 24  # characters of an attribute; a config of thousands of relations has 1 << 20
# Errors of HDF5 and h5py for a file whose structure makes no sense.
_DAMAGE = (OSError, RuntimeError, LookupError, TypeError, ValueError, OverflowError, ArithmeticError)


@dataclass
class Layout:
    """Content of a file without its numbers, as plain data.

    It goes through a pipe from the process that examines files.

    Attributes:
        attributes: of the file itself: numbers and texts; values of other types as text.
        groups: their names, without a leading slash.
        datasets: by name. Each has ``dtype``, ``shape``, ``chunks`` (or None), ``fill`` (bytes of one value, in hex),
            and one of ``offset`` (beginning of the one stretch of numbers), ``inline`` (index of a blob with the data),
            ``table`` (index of a blob with int64 (chunks, dimensions + 3): first element, place, bytes and skipped
            filters of each), or none of these when nothing was written. ``filters`` are (id, value) in the order of
            writing.
        blobs: bytes that belong to ``datasets``.
    """

    attributes: dict[str, str | int | float] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: list[bytes] = field(default_factory=list)


def read_layout(path: Path | RawIOBase, size: int) -> Layout:
    """Read the layout of a file.

    Args:
        path: of the file, or the file itself.
        size: its bytes.

    Raises:
        FormatError: truncated or damaged, of another format version, linked to other files, holding types or filters
            that none of PBG's formats uses, or declaring more data than its size can hold.
    """
    try:
        with h5py.File(path, "r") as file:
            return _Walk(path, file, size).layout
    except _DAMAGE as error:
        raise FormatError(f"{path}: damaged or truncated HDF5 file: {one_line(str(error))[:300]}") from None


class _Walk:
    """Visit of every object in a file, each once.

    Objects are identified by their addresses, because hard links may form a cycle.
    """

    def __init__(self, path: Path | RawIOBase, file: h5py.File, size: int) -> None:
        self._path, self._size = path, size
        self.layout = Layout()
        _check_version(path, file)
        for name in file.attrs:
            self._attribute(file, name)
        self._objects(file)

    def _attribute(self, file: h5py.File, name: str | bytes) -> None:
        try:
            value = file.attrs[name]
        except TypeError:  # of a type that numpy lacks, so not of PBG's formats
            return
        if not isinstance(name, str):  # not text, so not of PBG's formats
            return
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, str | int | float):
            value = str(value)
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise FormatError(f"{self._path}: attribute {name[:80]!r} has {len(value)} characters; it is none of PBG's")
        self.layout.attributes[name] = value

    def _objects(self, file: h5py.File) -> None:
        known: dict[int, dict[str, Any]] = {}  # datasets by address
        seen = {_address(file)}
        groups = [file["/"]]
        while groups:
            group = groups.pop()
            for name in group:
                if not isinstance(name, str):
                    raise FormatError(f"{self._path}: holds an object whose name is not text")
                inner = f"{group.name.rstrip('/')}/{name}"
                where = f"{self._path}: {inner}"
                if type(group.get(name, getlink=True)) is not h5py.HardLink:
                    raise FormatError(f"{where} is a link; only data inside the file itself is read")
                item = group[name]
                address = _address(item)
                if isinstance(item, h5py.Dataset):
                    if address not in known:
                        known[address] = self._dataset(where, item)
                    self.layout.datasets[inner[1:]] = known[address]
                elif isinstance(item, h5py.Group):
                    self.layout.groups.append(inner[1:])
                    if address not in seen:
                        seen.add(address)
                        groups.append(item)
                else:
                    raise FormatError(f"{where} is neither a group nor a dataset")

    def _dataset(self, where: str, item: h5py.Dataset) -> dict[str, Any]:
        plist = item.id.get_create_plist()
        filters = [plist.get_filter(index) for index in range(plist.get_nfilters())]
        _check_dataset(where, item, self._size, {each[0] for each in filters})
        found: dict[str, Any] = {
            "dtype": item.dtype.str,
            "shape": [int(length) for length in item.shape],
            "chunks": item.chunks and [int(length) for length in item.chunks],
            "fill": np.asarray(item.fillvalue, item.dtype).tobytes().hex(),
            "filters": [[int(code), int(values[0]) if values else 0] for code, _, values, _ in filters],
        }
        if item.chunks is not None:
            return found | {"table": self._blob(_chunk_table(item))}
        if not item.size:
            return found
        if plist.get_layout() == h5py.h5d.COMPACT:
            return found | {"inline": self._blob(item[()].tobytes())}
        offset = item.id.get_offset()  # None where nothing was written
        return found if offset is None else found | {"offset": int(offset)}

    def _blob(self, data: bytes) -> int:
        self.layout.blobs.append(data)
        return len(self.layout.blobs) - 1


def _chunk_table(item: h5py.Dataset) -> bytes:
    rows: list[tuple[int, ...]] = []
    item.id.chunk_iter(lambda info: rows.append((*info.chunk_offset, info.byte_offset, info.size, info.filter_mask)))
    return np.array(rows, "<i8").tobytes()


def _check_version(path: Path | RawIOBase, file: h5py.File) -> None:
    version = file.attrs.get("format_version")
    if version is None:
        raise FormatError(f"{path}: no attribute format_version, so not a file of PBG's formats")
    if np.ndim(version) or np.asarray(version).dtype.kind not in "iu" or int(version) != FORMAT_VERSION:
        raise FormatError(f"{path}: format_version is {version!s:.40}; this program reads version {FORMAT_VERSION}")


def _address(item: h5py.HLObject) -> int:
    address: int = h5py.h5o.get_info(item.id).addr
    return address


def _check_dataset(where: str, item: h5py.Dataset, size: int, filters: set[int]) -> None:
    if item.is_virtual or item.external:
        raise FormatError(f"{where} keeps its data in other files; only data inside the file itself is read")
    plain = item.dtype.kind in "iuf" and h5py.h5t.py_create(item.dtype).equal(item.id.get_type())
    if item.shape is None or not (plain or item.dtype == BYTES):
        raise FormatError(f"{where} is of type {item.dtype}; PBG's formats hold integers, floats and bytes")
    unknown = sorted(filters - {DEFLATE, SHUFFLE, FLETCHER32})
    if unknown:
        raise FormatError(f"{where} uses the HDF5 filters {unknown}; use gzip or none")
    limit = size * (_MAX_RATIO if filters else 1)
    declared = max(item.nbytes, _chunk_bytes(item))
    if declared > limit:
        raise FormatError(f"{where} declares {declared} bytes, which a file of {size} bytes cannot hold")


def _chunk_bytes(item: h5py.Dataset) -> int:
    """Return the bytes that reading one stored chunk allocates.

    An empty dataset may declare a chunk of any size, as PBG's do.
    """
    if item.chunks is None or item.id.get_storage_size() == 0:
        return 0
    return int(math.prod(item.chunks)) * int(item.dtype.itemsize)
