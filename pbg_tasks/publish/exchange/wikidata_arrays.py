"""Published Wikidata embeddings of PBG, as an array with names.

The files are ``*_vectors.npy.gz`` and ``*_names.json.gz``. The rows are those of the text, without its header: the
entities, then the relations, then each relation's reverse, named ``{relation}_reverse_relation``. The number of
entities is recorded nowhere; it follows from these names at the end.
"""

from __future__ import annotations

import gzip
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError, InputError
from pbg_tasks.formats.npy import damage_named
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.names import json_names
from pbg_tasks.publish.exchange.parts import named_items
from pbg_tasks.publish.exchange.vectors import Vectors
from pbg_tasks.storage.staging import named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from gzip import GzipFile
    from io import BufferedReader
    from pathlib import Path

    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions

ARRAYS = ("_vectors.npy", "_vectors.npy.gz")
_REVERSE = "_reverse_relation"
_BLOCK_VALUES = 1 << 20
_MATRIX = 2
_KINDS = {np.dtype("<f4"), np.dtype(">f4")}


def read_arrays(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of the entities.

    Raises:
        InputError: there are several arrays, or no names beside one.
        FormatError: the array or the names are damaged, or there are other names than rows.
    """
    for entity, files in inbox.typed(ARRAYS, options.entity).items():
        if len(files) > 1:
            raise InputError(f"{inbox.url}: holds {len(files)} arrays; name the file itself")
        (file,) = files
        wanted = [f"{file.rpartition('_vectors.npy')[0]}_names.json{ending}" for ending in (".gz", "")]
        beside = next(filter(inbox.has, wanted), None)
        if beside is None:
            raise InputError(f"{inbox.source(file)}: no names beside it; put {wanted[0]} there")
        with inbox.local(file) as path, inbox.local(beside) as names, _opened(path) as data:
            array = _Array(data, inbox.source(file))
            with named(names, inbox.source(beside)):
                entities = _count_entities(names)
            blocks = _blocks(array, named_items(json_names(names), names, inbox.source(beside)), entities)
            yield Vectors(entity, array.dimension, inbox.source(file), blocks, entities)


class _Array:
    """Rows of a ``.npy`` file, compressed or not, from first to last.

    Args:
        file: at its start.
        source: name of the file in errors.

    Attributes:
        rows: their number.
        dimension: of each.
        source: name of the file in errors.

    Raises:
        FormatError: it is no float32 matrix, row by row.
    """

    def __init__(self, file: GzipFile | BufferedReader, source: str) -> None:
        self._file, self.source = file, source
        with damage_named(self.source):
            version = np.lib.format.read_magic(file)
            first = version == (1, 0)
            read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, by_column, self._kind = read_header(file)
        if len(shape) != _MATRIX or by_column or self._kind not in _KINDS or not 0 < shape[1] <= _BLOCK_VALUES:
            raise FormatError(f"{source}: holds {self._kind} of shape {shape}; float32, row by row, is needed")
        self.rows, self.dimension = shape

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows, float32 (n, D).

        Raises:
            FormatError: the data is damaged, or not as long as its header promises.
        """
        left, step = self.rows, max(1, _BLOCK_VALUES // self.dimension)
        while left:
            count = min(left, step)
            with damage_named(self.source):
                data = self._file.read(count * self.dimension * self._kind.itemsize)
                rows = np.frombuffer(data, self._kind).reshape(count, self.dimension)
            yield rows.astype(np.float32)
            left -= count
        with damage_named(self.source):
            if self._file.read(1):  # gzip's checksum is checked only where the data ends
                raise ValueError("more data than its header says")


def _opened(path: Path) -> GzipFile | BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _count_entities(path: Path) -> int:
    """Return the number of names before those of relations at the end."""
    total, reverse = 0, list[str]()
    for name in json_names(path):
        total += 1
        if name.endswith(_REVERSE):
            reverse.append(name.removesuffix(_REVERSE))
        elif reverse:
            reverse.clear()
    entities = total - 2 * len(reverse)
    if entities < 0 or list(islice(json_names(path), entities, entities + len(reverse))) != reverse:
        raise FormatError(f"{path}: the last {len(reverse)} names are reverse relations, but not of those before them")
    say(f"{path.name}: {2 * len(reverse)} rows of relations are left out: an init_path holds entities only")
    return entities


def _blocks(array: _Array, names: Iterator[str], entities: int) -> Iterator[Block]:
    """Yield the first ``entities`` rows, and read on to the end.

    Only the end shows whether a file was truncated.
    """
    found = 0
    for vectors in array.blocks():
        listed = list(islice(names, len(vectors)))
        if len(listed) < len(vectors):
            raise FormatError(f"{array.source}: has {array.rows} rows and {found + len(listed)} names")
        wanted = min(max(0, entities - found), len(vectors))
        found += len(vectors)
        if wanted:
            yield Block(listed[:wanted], vectors[:wanted])
    if more := sum(1 for _ in names):
        raise FormatError(f"{array.source}: has {array.rows} rows and {found + more} names")
