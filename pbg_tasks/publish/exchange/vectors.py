"""Vectors with names, of one entity type, that a reader yields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import JsonValue

    from pbg_tasks.publish.exchange.contents import Block

_OWN = {"parquet": ("id_column", "vector_column"), "angel-line": ("key_separator", "feature_separator")}
"""Options that only one format has."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a reader.

    Attributes:
        entity: type of all vectors; None where the source itself has the types.
        escaped: whether names are percent-encoded; not needed where a manifest records it.
        id_column: parquet: column of the names; None for ``id`` or ``name``.
        vector_column: parquet: column of the vectors.
        key_separator: angel-line: after the node, as ``formats.angel`` takes it.
        feature_separator: angel-line: between numbers.
        options: formats of other packages: their own options.
    """

    entity: str | None = None
    escaped: bool = False
    id_column: str | None = None
    vector_column: str = "embedding"
    key_separator: str = "colon"
    feature_separator: str = "space"
    options: Mapping[str, JsonValue] = field(default_factory=dict)

    def foreign_to(self, format_name: str) -> list[str]:
        """Return the changed options that a format does not have."""
        others = {name for form, names in _OWN.items() if form != format_name for name in names}
        return [each.name for each in fields(self) if each.name in others and getattr(self, each.name) != each.default]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of one entity type.

    Attributes:
        entity: the type.
        dimension: of each vector.
        source: the file or folder, for messages.
        blocks: names with float32 rows, in order; only shapes are checked yet.
        total: number of vectors; None where the source does not have it.
    """

    entity: str
    dimension: int
    source: str
    blocks: Iterator[Block]
    total: int | None = None
