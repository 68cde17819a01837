"""Loading of a model's files into memory.

Embeddings are mapped; so are the indexes of many names. All files are of one version and fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.api.name_cache import cached_index
from pbg_tasks.api.names import NameIndex
from pbg_tasks.api.vectors import Vectors
from pbg_tasks.formats.embeddings import map_embeddings
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.formats.names import has_name_index
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.model_source import load_newest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.contract import Contract
    from pbg_tasks.tasks.model_source import Origin, Source


@dataclass(frozen=True, slots=True)
class EntityTable:
    """Table of one entity type, numbered over all partitions.

    Attributes:
        names: of its entities; of a featurized type, its features.
        vectors: their embeddings, raw.
    """

    names: NameIndex
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Contents:
    """All data of a version.

    Attributes:
        url: of the checkpoint directory.
        version: of its files.
        config: of the model.
        params: shared parameters by PBG's path below ``model/``.
        loops: int64, ids of the relations that had loops in training; None: unknown.
        relations: names by id.
        entities: by type.
        contract: facts by which readers check that the vectors fit.
        channel: by which it was found; None without one.
        release: its number in the channel; None without one.
        origin: the night that made it; None for a directory of PBG.
    """

    url: str
    version: int
    config: ConfigSchema
    params: Mapping[str, np.ndarray]
    loops: np.ndarray | None
    relations: tuple[str, ...]
    entities: Mapping[str, EntityTable]
    contract: Contract
    channel: str | None = None
    release: int | None = None
    origin: Origin | None = None


def open_contents(
    resources: ExitStack,
    locate: Callable[[Path], Source],
    *,
    scratch: Path | None = None,
    expect: Contract | None = None,
) -> Contents:
    """Load the newest version at a place.

    If its trainer replaces it meanwhile, the next version is loaded.

    Args:
        resources: takes the private directory of downloads.
        locate: finds the newest version, with downloads in a directory.
        scratch: parent of the private directory.
        expect: what the reader relies on; checked before anything large is downloaded.

    Raises:
        FormatError: a file is missing or damaged, or files do not fit together.
        IncompatibleError: the model is not what is expected.
    """
    place = resources.enter_context(Scratch(scratch)).path

    def find() -> Source:
        source = locate(place)
        if expect is not None:
            expect.check(source.contract, source=source.checkpoint.url)
        return source

    return load_newest(find, partial(_load, scratch=place))


def _load(source: Source, scratch: Path) -> Contents:
    config = source.config
    vectors = {entity: _vectors(source, entity, scratch) for entity in config.entities}
    for entity, table in vectors.items():
        source.check_counts(entity, {part: len(each) for part, each in enumerate(table.partitions)})
    relations = source.relations(scratch)
    model = source.model(scratch, len(relations))
    entities = {
        entity: EntityTable(_entity_names(source, entity, table, scratch), table) for entity, table in vectors.items()
    }
    facts = (source.checkpoint.url, source.version, config, model.params, model.loops, relations, entities)
    return Contents(*facts, source.contract, channel=source.channel, release=source.release, origin=source.origin)


def _vectors(source: Source, entity: str, scratch: Path) -> Vectors:
    dimension = source.config.entity_dimension(entity)
    mapped = [map_embeddings(path, dimension=dimension) for path in source.embeddings(entity, scratch)]
    return Vectors(mapped, partial(source.hidden, entity))


def _entity_names(source: Source, entity: str, vectors: Vectors, scratch: Path) -> NameIndex:
    counts, what = [len(part) for part in vectors.partitions], f"entity of type {entity!r}"
    if has_name_index(sum(counts)):
        return NameIndex(
            what, source.name_index(entity, counts, scratch) or cached_index(source, entity, counts, scratch)
        )
    partitions = (
        read_entity_names(path.parent, entity, part, count=counts[part])
        for part, path in enumerate(source.distinct_names(entity, scratch))
    )
    return NameIndex.of(what, partitions)
