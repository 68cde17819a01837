"""Stores of bytes, local or in S3, behind one contract.

``open_store`` picks the store by URL; ``Store`` defines the methods that each store must have. The AWS SDK is imported
only when an ``s3://`` URL is opened, and a package that adds a store only when a URL of its scheme is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pbg_tasks.errors import ConfigError
from pbg_tasks.plugins import Kind, PluginError
from pbg_tasks.redaction import credentials_in, shown
from pbg_tasks.storage.base import Blob, FinalFile, ObjectInfo, RangedStore, Store
from pbg_tasks.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

STORES = Kind("store", "pbg_tasks.stores", ("file", "s3"))
"""Stores by the scheme of their URLs. An entry point names ``open(url, environment)``, which returns a ``Store``."""

__all__ = [
    "STORES",
    "Blob",
    "FinalFile",
    "LocalStore",
    "ObjectInfo",
    "RangedStore",
    "Store",
    "is_remote",
    "open_file",
    "open_store",
    "tidy",
]


def open_store(url: str | Path, *, environment: Mapping[str, str] | None = None) -> Store:
    """Open a store by its URL; nothing is read yet.

    It is ``s3://bucket/prefix``, ``file:///path``, or an absolute or relative path. Installed packages
    add other schemes (``STORES``).

    Endpoint and credentials of S3 come from the environment or profile that every AWS client uses
    (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``...), never from the URL.

    Args:
        url: of the store.
        environment: variables that stand for S3's, in a process that has others; None: the process's own.

    Raises:
        ConfigError: the URL is empty, of a scheme that no installed package has, names no bucket or holds credentials;
            or the package that has the scheme is at fault.
    """
    if not str(url):
        raise ConfigError("a path is empty: name a directory (. for this one) or s3://bucket/prefix")
    if found := credentials_in(str(url)):
        raise ConfigError(
            f"{shown(str(url))} holds {found}: write the place alone; credentials come from the environment, a profile "
            "or the Airflow connection"
        )
    if isinstance(url, Path) or "://" not in url:
        return LocalStore(Path(url).expanduser())
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from pbg_tasks.storage.s3 import open_s3  # here, because the AWS SDK takes most of a second

        return open_s3(url, environment)
    if parts.scheme in STORES.names() and parts.scheme not in STORES.built_in:
        return _open_installed(parts.scheme, url, environment)
    known = ", ".join(f"{scheme}://" for scheme in STORES.names())
    raise ConfigError(
        f"{url}: no store has the scheme {parts.scheme}://; use a directory path or one of {known}, or install the "
        f"package that has it as an entry point of the group {STORES.group!r}"
    )


def is_remote(url: str) -> bool:
    """Return whether a store's URL names something other than a local directory."""
    return "://" in url and not url.startswith("file://")


def open_file(url: str) -> tuple[Store, str]:
    """Return the store of a file's folder, and the file's name.

    Raises:
        ConfigError: the URL names a folder, or one that no store holds.
    """
    parent, slash, name = url.rpartition("/")
    if not name:
        raise ConfigError(f"{url!r} names a folder, not a file")
    return open_store((parent or "/") if slash else "."), name


def tidy(store: Store) -> None:
    """Remove a directory's own folder where nothing in it is needed.

    For folders that people and other programs read. Other stores have no such folder.
    """
    if isinstance(store, LocalStore):
        store.tidy()


def _open_installed(scheme: str, url: str, environment: Mapping[str, str] | None) -> Store:
    point = STORES.entry_point(scheme)
    with STORES.blamed(scheme):
        opener = point.load()
        if not callable(opener):
            raise PluginError(f"is {opener!r}, not a function open(url, environment)")
        store = opener(url, environment)
        if not isinstance(store, Store):
            raise PluginError(f"gives {type(store).__name__}, which lacks methods of {Store.__module__}.Store")
        return store
