"""Reading of a matrix folder, as elements or as vectors.

Elements come block by block; vectors are its columns or its rows.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel.assembly import column_vectors, row_vectors
from pbg_tasks.formats.angel.formats import FORMATS, output_format
from pbg_tasks.formats.angel.losses import losses, once, refuse
from pbg_tasks.formats.angel.meta import MAX_META_BYTES, META_NAMES, parse_meta
from pbg_tasks.formats.angel.partition import Partition, Reading
from pbg_tasks.formats.angel.records import Style
from pbg_tasks.formats.angel.row_types import row_type
from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.formats.angel.folder import Folder
    from pbg_tasks.formats.angel.losses import OnLoss
    from pbg_tasks.formats.angel.meta import MatrixFilesMeta
    from pbg_tasks.formats.angel.partition import Cells


def open_matrix(folder: Folder, *, separator: str = ",", on_loss: OnLoss = refuse) -> Matrix:
    """Open a matrix folder.

    Args:
        folder: with its files.
        separator: of text formats; it is not in the metadata.
        on_loss: called with each kind of loss once, and once more if the loss becomes certain; mostly before data is
            read. By default a certain loss is an error.

    Raises:
        FormatError: its metadata is missing or damaged, or does not fit the files; or data was lost.
        ConfigError: its format belongs to a package that is not installed.
    """
    sizes = folder.sizes()
    meta = _read_meta(folder, sizes)
    kind = row_type(meta.row_type, folder.where)
    if not kind.numeric:
        raise FormatError(
            f"{folder.where}: rows of {kind.name} hold objects of a program; text of LINE or word2vec is read as such"
        )
    _check_files(meta, sizes, folder.where)
    form, on_loss = output_format(meta.format_class_name), once(on_loss)
    for loss in losses(meta, form, kind, folder.where):
        on_loss(loss)
    rounded = form is FORMATS["RowIdColIdValueTextRowFormat"] and kind.value_type == np.float64
    return Matrix(meta, Reading(folder, form, kind, Style(separator), on_loss, may_be_rounded=rounded))


class Matrix:
    """Matrix that is open for reading; made by ``open_matrix``.

    Attributes:
        meta: its metadata.
        row_type: of all its rows.
    """

    def __init__(self, meta: MatrixFilesMeta, reading: Reading) -> None:
        self.meta, self.row_type = meta, reading.row_type
        self._reading = reading
        parts = sorted(meta.part_metas.values(), key=lambda part: (len(part.file_name), part.file_name, part.offset))
        self._partitions = [Partition(part, reading) for part in parts]
        if first := next((item for item in self._partitions if item.records), None):
            first.check_decimals()  # the other partitions are checked when they are read

    def cells(self) -> Iterator[Cells]:
        """Yield all elements in the order of the files.

        A block is a few megabytes.

        Raises:
            FormatError: the data is damaged or does not fit the metadata.
        """
        for partition in self._partitions:
            yield from partition.cells()

    def vectors(self, entities: Literal["columns", "rows"] = "columns") -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield entities int64 (n,) and their vectors (n, D).

        The vectors are of the matrix's type, and a block is some megabytes. Elements that sparse rows lack are zero.
        Entities ascend within a partition, and none occurs twice.

        Args:
            entities: whether a column (as in Angel's embedding layers) or a row is an entity.

        Raises:
            FormatError: the data is damaged or does not fit the metadata, or its partitions form no grid.
            ResourceError: the files do not keep vectors together, and scratch has no room to transpose them.
        """
        kind = self.row_type.value_type
        if entities == "rows":
            yield from row_vectors(self._partitions, kind)
        else:
            by_column = self._reading.form.by_column
            yield from column_vectors(self._partitions, kind, by_column=by_column, dense=self.row_type.dense)


def _read_meta(folder: Folder, sizes: dict[str, int]) -> MatrixFilesMeta:
    name = next((name for name in META_NAMES if name in sizes), None)
    if name is None:
        raise FormatError(
            f"{folder.where}: no {' or '.join(META_NAMES)}, so no matrix folder of Angel's; text of LINE or word2vec, "
            "whose metadata is deleted, is read as such"
        )
    where = f"{folder.where}/{name}"
    if sizes[name] > MAX_META_BYTES:
        raise FormatError(f"{where}: {sizes[name]} bytes of metadata; more than {MAX_META_BYTES} are not read")
    path = folder.local(name)
    with disk_errors(where):
        return parse_meta(path.read_bytes(), where)


def _check_files(meta: MatrixFilesMeta, sizes: dict[str, int], where: str) -> None:
    """Check the partitions' ids and their places in files.

    A server needs ids without a gap. The partitions' bytes must not overlap, and the files must be large enough for
    them.
    """
    if missing := set(range(len(meta.part_metas))) - set(meta.part_metas):
        raise FormatError(f"{where}: partition {min(missing)} of {len(meta.part_metas)} is missing; ids count from 0")
    files = defaultdict(list)
    for part in meta.part_metas.values():
        files[part.file_name].append((part.offset, part.offset + part.length, part.part_id))
    for name, parts in files.items():
        if name not in sizes:
            raise FormatError(f"{where}/{name} is missing, the file of partition {parts[0][2]}")
        end = max(end for _, end, _ in parts)
        if end > sizes[name]:
            raise FormatError(f"{where}/{name}: {sizes[name]} bytes, its metadata says {end} at least: it is truncated")
        for (_, stop, one), (start, _, other) in pairwise(sorted(parts)):
            if start < stop:
                raise FormatError(f"{where}/{name}: partitions {one} and {other} share bytes")
