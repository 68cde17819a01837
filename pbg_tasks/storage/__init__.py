"""Bytes, on a local disk or in S3, behind one small contract.

``open_store`` picks the store by URL; ``Store`` says what each must do. The AWS SDK is imported only when an ``s3://``
URL is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pbg_tasks.errors import ConfigError
from pbg_tasks.redaction import credentials_in, shown
from pbg_tasks.storage.base import Blob, FinalFile, ObjectInfo, RangedStore, Store
from pbg_tasks.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Blob", "FinalFile", "LocalStore", "ObjectInfo", "RangedStore", "Store", "open_file", "open_store"]


def open_store(url: str | Path, *, environment: Mapping[str, str] | None = None) -> Store:
    """Open the store at ``s3://bucket/prefix``, ``file:///path``, or an absolute or relative path; nothing is read yet.

    Endpoint and credentials of S3 come from the environment or profile that every AWS client uses
    (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``...), never from the URL.

    Args:
        url: of the store.
        environment: variables that stand for S3's, in a process that has others; None: the process's own.

    Raises:
        ConfigError: the URL is empty, of another kind, names no bucket or holds credentials.
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
    raise ConfigError(f"{parts.scheme}:// is no store this package knows: use s3://bucket/prefix or a directory path")


def open_file(url: str) -> tuple[Store, str]:
    """Return the store of a file's folder, and the file's name in it.

    Raises:
        ConfigError: the URL names a folder, or one that no store holds.
    """
    parent, slash, name = url.rpartition("/")
    if not name:
        raise ConfigError(f"{url!r} names a folder, not a file")
    return open_store((parent or "/") if slash else "."), name
