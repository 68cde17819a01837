"""A model's files into memory: embeddings mapped, names indexed, all of one version and fitting together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.api.names import NameIndex
from pbg_tasks.api.source import locate
from pbg_tasks.api.vectors import Vectors, map_embeddings
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import (
    RELATION_COUNT,
    RELATION_NAMES,
    entity_names_file_name,
    read_entity_names,
    read_relation_count,
    read_relation_names,
)
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.model.parameters import initial_parameters
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np

    from pbg_tasks.api.source import Directory, Source
    from pbg_tasks.config import ConfigSchema

_TRIES = 5


@dataclass(frozen=True, slots=True)
class EntityTable:
    """One entity type: numbers go over all partitions.

    Attributes:
        names: of its entities; of a featurized type, its features.
        vectors: their embeddings, raw.
    """

    names: NameIndex
    vectors: Vectors


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a version holds.

    Attributes:
        url: of the checkpoint directory.
        version: of its files.
        config: of the model.
        params: shared parameters by PBG's path below ``model/``.
        relations: names by id.
        entities: by type.
    """

    url: str
    version: int
    config: ConfigSchema
    params: Mapping[str, np.ndarray]
    relations: tuple[str, ...]
    entities: Mapping[str, EntityTable]


def open_contents(
    resources: ExitStack,
    url: str | Path,
    *,
    channel: str | None = None,
    entity_path: str | Path | None = None,
    scratch: Path | None = None,
) -> Contents:
    """Load the newest version at a URL; if its trainer replaces it meanwhile, the next one.

    Args:
        resources: takes the private directory of what was downloaded.
        url: as ``source.locate`` takes it.
        channel: same.
        entity_path: same.
        scratch: where the private directory is made.

    Raises:
        FormatError: a file is missing or damaged, or files do not fit together.
    """
    place = resources.enter_context(Scratch(scratch)).path
    find = partial(locate, url, place, channel=channel, entity_path=entity_path)
    source = find()
    for _ in range(_TRIES):
        try:
            return _load(source, place)
        except (NotFoundError, FormatError):
            newest = find()
            if newest.version == source.version:
                raise
            source = newest
    return _load(source, place)


def _load(source: Source, scratch: Path) -> Contents:
    version, where = source.version, source.checkpoint
    (model_path,) = where.bring([model_file_name(version)], scratch)
    config, names = source.config, source.entities
    params = read_model(model_path).params
    tables = _vectors(source, config, scratch)
    relations = _relation_names(names, config, scratch)
    _check_parameters(config, params, len(relations), model_path)
    entities = {
        entity: EntityTable(_entity_names(names, entity, vectors, scratch), vectors)
        for entity, vectors in tables.items()
    }
    return Contents(where.url, version, config, params, relations, entities)


def _vectors(source: Source, config: ConfigSchema, scratch: Path) -> dict[str, Vectors]:
    keys = [(entity, part) for entity, schema in config.entities.items() for part in range(schema.num_partitions)]
    names = [embeddings_file_name(*key, source.version) for key in keys]
    paths = dict(zip(keys, source.checkpoint.bring(names, scratch), strict=True))
    return {
        entity: Vectors(
            [
                map_embeddings(paths[entity, part], dimension=config.entity_dimension(entity))
                for part in range(schema.num_partitions)
            ]
        )
        for entity, schema in config.entities.items()
    }


def _entity_names(where: Directory, entity: str, vectors: Vectors, scratch: Path) -> NameIndex:
    parts = range(len(vectors.partitions))
    paths = where.bring([entity_names_file_name(entity, part) for part in parts], scratch)
    partitions = (
        read_entity_names(path.parent, entity, part, count=len(vectors.partitions[part]))
        for part, path in zip(parts, paths, strict=True)
    )
    return NameIndex(f"entity of type {entity!r}", partitions)


def _relation_names(where: Directory, config: ConfigSchema, scratch: Path) -> tuple[str, ...]:
    if not config.relations_from_data:
        return tuple(relation.name for relation in config.relations)
    try:
        (path,) = where.bring([RELATION_NAMES], scratch)
    except NotFoundError:  # PBG itself needs their number only
        (path,) = where.bring([RELATION_COUNT], scratch)
        return tuple(map(str, range(read_relation_count(path.parent))))
    return tuple(read_relation_names(path.parent))


def _check_parameters(config: ConfigSchema, params: Mapping[str, np.ndarray], relation_count: int, path: Path) -> None:
    for name, value in initial_parameters(config, relation_count).items():
        found = params.get(name)
        if found is None or found.shape != value.shape:
            what = "is missing" if found is None else f"has shape {found.shape}"
            raise FormatError(
                f"{path}: parameter model/{name} {what}; config and relation names ask for shape {tuple(value.shape)}"
            )
