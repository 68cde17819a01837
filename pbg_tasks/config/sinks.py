"""Options of sinks, which are vector stores that exports fill.

Those of built-in sinks are checked with the spec, those of a package when it is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pbg_tasks.config.base import Options, digest, parse
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Positive = Annotated[int, Field(ge=1)]
_LONGEST = 24  # characters of a part of a table's name; PostgreSQL has room for 63 of the whole


def slug(name: str) -> str:
    """Return a name of lower-case letters, digits and underscores.

    Every store takes such names. Names that differ have different slugs.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if plain == name and len(plain) <= _LONGEST and plain[:1].isalpha():
        return plain
    plain = plain if plain[:1].isalpha() else f"n_{plain}"
    return f"{plain[: _LONGEST - 7].rstrip('_')}_{digest(name)[:6]}"


def collection_of(graph: str, channel: str) -> str:
    """Return the collection of a channel, where options name none.

    The channel of a plain one has no underscore, because graph ``a_b`` and channel ``c`` are not ``a`` and ``b_c``.
    """
    return slug(f"{graph}{'/' if '_' in channel else '_'}{channel}")


class SinkOptions(Options):
    """Options of every sink; a sink's own class adds more.

    Attributes:
        collection: begins the names of all tables and aliases, so that several graphs share a store; by default made of
            the graph's name and its channel's, or ``pbg`` for an export by hand.
        keep: number of earlier releases whose tables stay, so that a roll-back finds them.
        batch_mb: megabytes of vectors that are written at once.
    """

    collection: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]{0,23})?$")] = ""
    keep: Annotated[int, Field(ge=1)] = 3
    batch_mb: Annotated[float, Field(gt=0)] = 32.0


class DeltaSinkOptions(SinkOptions):
    """Options of sinks whose tables can begin as copies.

    Attributes:
        moved_above: share of a vector's length by which it has to differ from the served one to be written again; null
            writes every release whole.
        whole_every: number of releases after which one is written whole.
    """

    moved_above: Annotated[float, Field(ge=0)] | None = None
    whole_every: Positive = 7


class LanceDBOptions(DeltaSinkOptions):
    """Options of ``lancedb``.

    Attributes:
        index: kind of index; a search of a table without one compares all vectors.
        index_from: least number of rows of a table that gets an index.
        partitions: of the index; LanceDB's own number by default.
        nprobes: number of partitions that a search looks at; of readers too.
        refine_factor: multiple of the wanted rows whose exact distances a search compares; of readers too.
    """

    index: Literal["IVF_PQ", "IVF_FLAT", "IVF_SQ", "IVF_HNSW_SQ", "IVF_HNSW_PQ", "none"] = "IVF_SQ"
    index_from: Positive = 10_000
    partitions: Positive | None = None
    nprobes: Positive = 20
    refine_factor: Positive = 4


class PgvectorOptions(SinkOptions):
    """Options of ``pgvector``.

    Attributes:
        index: ``hnsw``, or ``none``, where a search compares all vectors.
        m: connections of a row in the index.
        ef_construction: candidates of a row while the index is built.
        ef_search: candidates of a search; of readers too.
        build_memory_mb: memory of the server in which the index is built.
    """

    index: Literal["hnsw", "none"] = "hnsw"
    m: Annotated[int, Field(ge=2, le=100)] = 16
    ef_construction: Annotated[int, Field(ge=4, le=1000)] = 64
    ef_search: Annotated[int, Field(ge=1, le=1000)] = 100
    build_memory_mb: Annotated[int, Field(ge=1, le=1 << 20)] = 1024


class QdrantOptions(SinkOptions):
    """Options of ``qdrant``.

    Attributes:
        m: connections of a point in the index.
        ef_construct: candidates of a point while the index is built.
        hnsw_ef: candidates of a search; of readers too.
        indexing_threshold_kb: kilobytes of vectors of a segment from which on it gets an index.
    """

    m: Annotated[int, Field(ge=4, le=256)] = 16
    ef_construct: Annotated[int, Field(ge=4, le=10_000)] = 100
    hnsw_ef: Positive = 128
    indexing_threshold_kb: Positive = 10_000


class MilvusOptions(SinkOptions):
    """Options of ``milvus``.

    Attributes:
        m: connections of a row in the index.
        ef_construction: candidates of a row while the index is built.
        ef: candidates of a search; of readers too.
    """

    m: Annotated[int, Field(ge=2, le=2048)] = 16
    ef_construction: Annotated[int, Field(ge=1, le=10_000)] = 200
    ef: Annotated[int, Field(ge=1, le=16_384)] = 128


OPTIONS: dict[str, type[SinkOptions]] = {
    "lancedb": LanceDBOptions,
    "milvus": MilvusOptions,
    "pgvector": PgvectorOptions,
    "qdrant": QdrantOptions,
}
"""Options of built-in sinks."""


_WHOLE_ONLY = {
    "milvus": "Milvus copies no collection",
    "pgvector": "PostgreSQL has no copy of a table that shares its rows and its index",
    "qdrant": "Qdrant copies no collection",
}
"""Reasons for which built-in sinks write every release whole."""
_WEB = (re.compile(r"https?://.+|(?!.*://).+"), "https://HOST:PORT or a directory")
_DESTINATIONS = {
    "lancedb": (re.compile(r"(s3|file)://.+|(?!.*://).+"), "s3://BUCKET/PREFIX or a directory"),
    "milvus": _WEB,
    "pgvector": (re.compile(r"postgres(ql)?://.*"), "postgresql://HOST/DATABASE"),
    "qdrant": _WEB,
}


def refuse_delta(sink: str, options: Mapping[str, Any]) -> None:
    """Refuse delta upserts where a sink's store cannot copy a table.

    Raises:
        ValueError: an option of ``DeltaSinkOptions`` is given.
    """
    asked = sorted(options.keys() & (DeltaSinkOptions.model_fields.keys() - SinkOptions.model_fields.keys()))
    if asked and sink in _WHOLE_ONLY:
        raise ValueError(
            f"sink {sink} has no option {asked[0]!r}, because {_WHOLE_ONLY[sink]}: each release is written whole; "
            "leave the option out, or use sink lancedb"
        )


def check_sink(sink: str, destination: str | None, options: Mapping[str, Any]) -> None:
    """Refuse a wrong destination or option of a built-in sink.

    Args:
        sink: its name.
        destination: URL of the store; None for its place in the graph's.
        options: by name.

    Raises:
        ValueError: the destination is of another kind, a key is unknown, or has a wrong value.
    """
    if sink not in OPTIONS:
        return
    pattern, asked = _DESTINATIONS[sink]
    if destination is not None and not pattern.fullmatch(destination):
        raise ValueError(f"the destination of sink {sink} is {asked}, not {destination!r}")
    refuse_delta(sink, options)
    try:
        parse(OPTIONS[sink], options, source=f"options of sink {sink}")
    except ConfigError as error:
        raise ValueError(str(error)) from None
