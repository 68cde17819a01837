"""File names of checkpoints, releases and exports, without the formats themselves."""

from __future__ import annotations

EXCHANGE_MANIFEST = "_manifest.json"
"""Manifest of an export or import. Readers of folders (Spark, pyarrow) leave out names with an underscore first."""
EXCHANGE_MARK = "_unfinished.json"
"""Mark that an export or import is under way or was cut off. Without a manifest beside it, the folder is not whole."""
UNFINISHED = "is being written, or was cut off and has to be written again"
"""The same in the words of an error."""
EDGE_HASHES = "edge_hashes.parquet"
"""File with the columns ``relation`` (its label) and ``hash``, sorted by both; one row for each distinct edge; see
``formats.tables``."""
RETURNED = "returned.parquet"
"""Pairs of entities that were drawn to be held out, and train."""
INDEXED_FROM = 1 << 17
"""Number of entities from which a type's name index is stored; fewer names are indexed in memory within a second."""
INDEXED_BELOW = 1 << 32
"""An index has the numbers of entities in 32 bits."""


def has_name_index(entities: int) -> bool:
    """Whether a type with so many entities has a stored index."""
    return INDEXED_FROM <= entities < INDEXED_BELOW


def embeddings_file_name(entity: str, partition: int, version: int) -> str:
    """Return the file name of a partition in a version."""
    return f"embeddings_{entity}_{partition}.v{version}.h5"


def model_file_name(version: int) -> str:
    """Return the file name of the shared parameters in a version."""
    return f"model.v{version}.h5"
