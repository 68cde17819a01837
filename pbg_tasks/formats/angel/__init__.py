"""Angel's model storage: matrix folders, and text of LINE and word2vec.

Matrix folders are written by Angel's parameter servers.

A matrix folder holds ``_meta`` (``meta`` before Angel 3.2) and data files; a model directory holds such folders, one a
matrix. In a matrix of embeddings a column is an entity and a row a dimension::

    with folder_of(store, "model/user_embedding") as folder:
        for ids_N, block_ND in open_matrix(folder).vectors():  # int64 (n,), values of the matrix's type (n, D)
            ...

    layout = MatrixLayout(name="user_embedding", rows=D, end_col=N)  # binary; Angel's own default is TextColumnFormat
    with replacing_directory(path) as model:  # every matrix of a model, shown at once
        write_matrix(model, layout, blocks)  # the same pairs, ids ascending
        write_mapping(model / "mapping", enumerate(names))
    upload(path, store, "model")

LINE and word2vec text is ``read_line(folder)`` and ``write_line(path, blocks)``, with the same pairs; the names of the
entities stand beside either in a folder ``mapping``: ``read_mapping`` and ``write_mapping``, pairs of id and name.

What Angel itself lost while it saved is refused with the reason, unless the caller gives ``on_loss`` (see ``losses``).
"""

from __future__ import annotations

from pbg_tasks.formats.angel.commit import replacing_directory, upload
from pbg_tasks.formats.angel.folder import Folder, LocalFolder, folder_of
from pbg_tasks.formats.angel.formats import ANGEL_FORMATS, FORMATS, class_name, layer_format, output_format
from pbg_tasks.formats.angel.layout import MatrixLayout
from pbg_tasks.formats.angel.line import SEPARATORS, latest_line, read_line, write_line
from pbg_tasks.formats.angel.losses import AngelLossWarning, Loss, refuse
from pbg_tasks.formats.angel.mapping import read_mapping, write_lines, write_mapping
from pbg_tasks.formats.angel.matrix import Matrix, open_matrix
from pbg_tasks.formats.angel.meta import (
    MatrixFilesMeta,
    MatrixPartitionMeta,
    RowPartitionMeta,
    parse_meta,
    serialize_meta,
)
from pbg_tasks.formats.angel.partition import Cells
from pbg_tasks.formats.angel.records import Format, Records, Span, Style, Types
from pbg_tasks.formats.angel.row_types import RowType
from pbg_tasks.formats.angel.writer import write_cells, write_matrix, write_range

__all__ = [
    "ANGEL_FORMATS",
    "FORMATS",
    "SEPARATORS",
    "AngelLossWarning",
    "Cells",
    "Folder",
    "Format",
    "LocalFolder",
    "Loss",
    "Matrix",
    "MatrixFilesMeta",
    "MatrixLayout",
    "MatrixPartitionMeta",
    "Records",
    "RowPartitionMeta",
    "RowType",
    "Span",
    "Style",
    "Types",
    "class_name",
    "folder_of",
    "latest_line",
    "layer_format",
    "open_matrix",
    "output_format",
    "parse_meta",
    "read_line",
    "read_mapping",
    "refuse",
    "replacing_directory",
    "serialize_meta",
    "upload",
    "write_cells",
    "write_line",
    "write_lines",
    "write_mapping",
    "write_matrix",
    "write_range",
]
