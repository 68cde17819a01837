"""PBG configs by URL, local or ``s3://``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.loading import load_config
from pbg_tasks.errors import ConfigError, NotFoundError
from pbg_tasks.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config import ConfigSchema


def read_config_document(url: str) -> bytes:
    """Return the bytes of a config.

    Raises:
        ConfigError: there is none.
    """
    parent, _, name = url.rpartition("/")
    try:
        return open_store(parent or ("/" if url.startswith("/") else ".")).get(name).data
    except NotFoundError:
        raise ConfigError(f"{url}: no such config") from None


def load_config_from(url: str, overrides: Sequence[str] = ()) -> ConfigSchema:
    """Read and validate a PBG config.

    Raises:
        ConfigError: it is missing, unreadable or wrong; every wrong key is named.
    """
    return load_config(read_config_document(url), source=url, overrides=overrides)
