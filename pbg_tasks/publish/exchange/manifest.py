"""What an export or import left at its destination; written last, so where it is, everything is."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import Sha256
from pbg_tasks.config.base import Frozen
from pbg_tasks.config.names import EntityName

MANIFEST = "_manifest.json"
"""Its name; readers of folders (Spark, pyarrow) leave out what begins with an underscore."""

MARK = "_unfinished.json"
"""Says that an export or import is under way or was cut off; where no manifest is beside it, nothing is whole."""

STAGED = "_staged/"
"""Where files wait that are to replace others."""


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
    """Where exported embeddings come from.

    Attributes:
        url: of the checkpoint directory.
        version: of the checkpoint.
        manifest_sha256: hash of the directory's manifest; null where nobody recorded one.
        channel: whose release it is, where it was asked for by its channel.
    """

    url: str
    version: int
    manifest_sha256: Sha256 | None = None
    channel: str | None = None


class VectorSource(Frozen):
    """Where imported vectors come from."""

    url: str


class ExchangeManifest(Frozen):
    """Names, sizes and hashes of all files, and what they hold.

    Attributes:
        exchange: name of the exchange format.
        source: what was exported or imported.
        types: by entity type.
        names: whether names stand as they are, or percent-encoded where the format needs it.
        comparator: of the model, for whoever compares embeddings; null for imports.
        relations: how many the model has; null for imports.
        measured: what the format adds, such as the recall of an index.
        objects: every file but this one.
    """

    format: Literal[1] = 1
    exchange: str
    source: ModelSource | VectorSource
    types: dict[EntityName, TypeRecord]
    names: Literal["plain", "percent-encoded"] = "plain"
    comparator: str | None = None
    relations: int | None = None
    measured: dict[str, Any] = Field(default_factory=dict)
    objects: dict[str, ObjectRecord]


class UnfinishedMark(Frozen):
    """Who writes at a destination.

    Attributes:
        token: tells writers apart.
        objects: keys that it writes or removes.
    """

    token: str
    objects: tuple[str, ...]
