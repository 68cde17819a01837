"""PBG configs by URL, local or ``s3://``."""

from __future__ import annotations

from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.loading import load_config
from pbg_tasks.config.overrides import find
from pbg_tasks.errors import ConfigError, NotFoundError
from pbg_tasks.formats.entities import entity_count_file_name
from pbg_tasks.storage import open_file, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config.loading import FindPartitions


def read_config_document(url: str) -> bytes:
    """Return the bytes of a config.

    Raises:
        ConfigError: there is none.
    """
    store, name = open_file(url)
    try:
        return store.get(name).data
    except NotFoundError:
        raise ConfigError(f"{url}: no such config") from None


def load_config_from(url: str, overrides: Sequence[str] = (), *, choose: FindPartitions | None = None) -> ConfigSchema:
    """Read and validate a PBG config.

    ``num_partitions: auto`` becomes the number that the entity path has.

    Args:
        url: local or ``s3://``.
        overrides: ``key.path=value``.
        choose: gives the number for types that are not imported yet. None: the caller needs imported data, so such
            types are an error.

    Raises:
        ConfigError: it is missing, unreadable or wrong; every wrong key is named.
    """

    def partitions(config: ConfigSchema, auto: list[str]) -> Mapping[str, int]:
        found = _imported_partitions(config.entity_path, auto)
        missing = [entity for entity in auto if entity not in found]
        if missing and choose is None:
            raise ConfigError(
                f"{url}: entities.{missing[0]}.num_partitions: auto, yet nothing of {missing[0]} is imported into "
                f"entity_path {config.entity_path!r}; `pbg import` chooses the number, or write one"
            )
        return {**found, **choose(config, missing)} if missing and choose is not None else found

    return load_config(read_config_document(url), source=url, overrides=overrides, partitions=partitions)


def _imported_partitions(entity_path: str, entities: Sequence[str]) -> dict[str, int]:
    """Return the numbers of partitions that entity types were imported with.

    Types that were not imported are left out.
    """
    there = {info.key for info in open_store(entity_path).list("entity_count_")}
    found = {}
    for entity in entities:
        present = (entity_count_file_name(entity, part) in there for part in count())
        if partitions := sum(takewhile(bool, present)):
            found[entity] = partitions
    return found


def show_config(url: str, key: str | None = None, overrides: Sequence[str] = ()) -> Any:  # noqa: ANN401 - any JSON value
    """Return a config as PBG stores it, or one key's value.

    PBG stores it as ``config.json``. A key may also be one that only this package has.

    Raises:
        ConfigError: the config is missing, unreadable or wrong, or has no such key.
    """
    config = load_config_from(url, overrides)
    if key is None:
        return config.to_pbg()
    return find(config.model_dump(mode="json"), key, source=url, schema=ConfigSchema)
