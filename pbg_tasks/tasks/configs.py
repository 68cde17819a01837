"""PBG configs by URL, local or ``s3://``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.loading import load_config
from pbg_tasks.config.overrides import find
from pbg_tasks.errors import ConfigError, NotFoundError
from pbg_tasks.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def load_config_from(url: str, overrides: Sequence[str] = ()) -> ConfigSchema:
    """Read and validate a PBG config.

    Raises:
        ConfigError: it is missing, unreadable or wrong; every wrong key is named.
    """
    return load_config(read_config_document(url), source=url, overrides=overrides)


def show_config(url: str, key: str | None = None, overrides: Sequence[str] = ()) -> Any:  # noqa: ANN401 - any JSON value
    """Return a config as PBG stores it (``config.json``), or the value of one key; keys of ours are found as well.

    Raises:
        ConfigError: the config is missing, unreadable or wrong, or has no such key.
    """
    config = load_config_from(url, overrides)
    if key is None:
        return config.to_pbg()
    return find(config.model_dump(mode="json"), key, source=url, schema=ConfigSchema)
