"""Arrays with names: ``{type}.npy`` with ``{type}.json``.

``init_path`` reads this form. It is written in blocks.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.distinct_names import hashes_of, repeated_name
from pbg_tasks.formats.files import replacing
from pbg_tasks.publish.exchange.names import check_unicode, listed_names, names_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pbg_tasks.publish.exchange.contents import Block
    from pbg_tasks.publish.exchange.names import NamesFile
    from pbg_tasks.publish.exchange.vectors import Vectors


class NamedArray:
    """Array file of float32 (N, D), with a list of N names.

    N becomes known when they are finished.

    Args:
        array: open for writing, at its start.
        names: gets the names.
        dimension: D.

    Attributes:
        rows: number of rows written so far.
    """

    def __init__(self, array: BinaryIO, names: NamesFile, dimension: int) -> None:
        self._array, self._names = array, names
        self._dimension, self.rows = dimension, 0
        self._write_header()

    def append(self, block: Block) -> None:
        """Write rows with their names."""
        self._array.write(np.ascontiguousarray(block.vectors, "<f4").data)
        self._names.append(block.names)
        self.rows += len(block.names)

    def finish(self) -> None:
        """Write the final number of rows into the array's header."""
        self._array.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        """Write the header of the array.

        numpy leaves room in it for the number of rows to grow, so that the final header fits into the place of the
        first.
        """
        shape = (self.rows, self._dimension)
        np.lib.format.write_array_header_1_0(self._array, {"descr": "<f4", "fortran_order": False, "shape": shape})


@contextmanager
def named_array(array: Path, names: Path, dimension: int) -> Iterator[NamedArray]:
    """Open a new array with names.

    Both get their final names when the block ends without an error.

    Raises:
        ResourceError: the disk is full.
    """
    with names_file(names) as listed, replacing(array) as partial, partial.open("wb") as file:
        result = NamedArray(file, listed, dimension)
        yield result
        result.finish()


def write_vectors(vectors: Vectors, array: Path, names: Path, *, on_rows: Callable[[int], None]) -> int:
    """Check and write a reader's vectors; return the number of rows.

    Args:
        vectors: of one type.
        array: file of the vectors.
        names: file of the names.
        on_rows: called with the number of rows written since the last call.

    Raises:
        FormatError: a vector is not finite in float32, or a name occurs twice or is no text; the message names it.
    """
    hashes = []
    with named_array(array, names, vectors.dimension) as result:
        for block in vectors.blocks:
            check_unicode(block.names, source=vectors.source)
            _check_finite(block, vectors.source)
            result.append(block)
            hashes.append(hashes_of(block.names))
            on_rows(len(block.names))
    if (repeated := repeated_name(hashes, lambda: listed_names(names))) is not None:
        raise FormatError(f"{vectors.source}: the name {repeated!r:.60} comes twice; one row a name is needed")
    return result.rows


def _check_finite(block: Block, source: str) -> None:
    finite = np.isfinite(block.vectors).all(axis=1)
    if not finite.all():
        name = block.names[int(np.argmin(finite))]
        raise FormatError(f"{source}: the vector of {name!r:.60} is not finite in float32")
