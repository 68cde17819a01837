"""Manifest of an export or import at its destination.

It is written last, so that where it exists, all files do.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import Sha256
from pbg_tasks.config.base import Frozen
from pbg_tasks.config.contract import Contract
from pbg_tasks.config.names import EntityName
from pbg_tasks.formats.names import EXCHANGE_MANIFEST, EXCHANGE_MARK

MANIFEST, MARK = EXCHANGE_MANIFEST, EXCHANGE_MARK

STAGED = "_staged/"
"""Prefix of files that wait to replace others."""


PARTS = "_parts/"
"""Prefix of the parts of an export, which wait for their merge."""


class TypeRecord(Frozen):
    """One entity type as it was written.

    Attributes:
        rows: vectors.
        dimension: of each.
        files: that hold vectors and names of this type; they may hold other types too.
    """

    rows: int
    dimension: int
    files: tuple[str, ...] = ()


class ModelSource(Frozen):
    """Source of exported embeddings.

    Attributes:
        url: of the checkpoint directory.
        version: of the checkpoint.
        manifest_sha256: hash of the directory's manifest; null where none was recorded.
        channel: of the release, where it was requested by its channel.
        contract: facts by which readers check that the vectors fit; null where an earlier version wrote the document.
    """

    url: str
    version: int
    manifest_sha256: Sha256 | None = None
    channel: str | None = None
    contract: Contract | None = None


class VectorSource(Frozen):
    """Source of imported vectors."""

    url: str


class ExchangeManifest(Frozen):
    """Names, sizes and hashes of all files, and their contents.

    Attributes:
        exchange: name of the exchange format.
        source: of the exported or imported vectors.
        types: by entity type.
        names: whether names are plain, or percent-encoded where the format needs it.
        parted: options of an export in parts that differ from the defaults; null for an export without parts, and
            where an earlier version wrote the document.
        comparator: of the model, for programs that compare embeddings; null for imports.
        relations: number of the model's relations; null for imports.
        measured: figures of the format, such as the recall of an index.
        objects: every file but this one.
    """

    format: Literal[1] = 1
    exchange: str
    source: ModelSource | VectorSource
    types: dict[EntityName, TypeRecord]
    names: Literal["plain", "percent-encoded"] = "plain"
    parted: dict[str, JsonValue] | None = None
    comparator: str | None = None
    relations: int | None = None
    measured: dict[str, JsonValue] = Field(default_factory=dict)
    objects: dict[str, ObjectRecord]


class PartRecord(Frozen):
    """One part of an export, whose files wait below ``PARTS``.

    Attributes:
        part: ``i/n``.
        exchange: name of the exchange format.
        source: of the vectors.
        options: of the export that differ from the defaults.
        folder: key of the folder of its files.
        types: rows and files of each type in this part.
        comparator: of the model.
        relations: number of the model's relations.
        measured: figures of the format.
        objects: its files, by the names that the export gives them.
        pieces: its files that the merge joins with those of other parts, the same.
    """

    format: Literal[1] = 1
    part: str
    exchange: str
    source: ModelSource
    options: dict[str, JsonValue]
    folder: str
    types: dict[EntityName, TypeRecord]
    comparator: str
    relations: int
    measured: dict[str, JsonValue] = Field(default_factory=dict)
    objects: dict[str, ObjectRecord]
    pieces: dict[str, ObjectRecord] = Field(default_factory=dict)


class UnfinishedMark(Frozen):
    """Mark of the process that writes at a destination.

    Attributes:
        token: distinguishes writers.
        objects: keys that it writes or removes.
    """

    token: str
    objects: tuple[str, ...]
