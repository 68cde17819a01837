"""Rules for keys and metadata that every store can hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

RESERVED = ".pbg"
"""Folder of a local store's own records; no key may hold this segment."""

_KEY_BYTES = 1024  # S3's limit
_SEGMENT_BYTES = 255  # every file system's limit, SeaweedFS's too
_METADATA_BYTES = 1900  # S3 allows 2048, and the store adds its own stamp
_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
}


def content_type(key: str) -> str:
    """Return the content type of an object, for browsers.

    Only the parts of a page and its documents have one of their own; any other object is plain bytes.
    """
    return _CONTENT_TYPES.get(key.rpartition(".")[2], "application/octet-stream")


def is_hidden(path: str) -> bool:
    """Return whether a path of a snapshot or export is hidden.

    What is hidden is no data: the file, or a folder on the way to it, is named ``_...`` or ``.``.
    """
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def check_key(key: str) -> str:
    """Return ``key`` when every store can hold it.

    Raises:
        ConfigError: it is empty, absolute, too long, climbs out of the root, or holds an empty segment, a control
            character or the reserved segment ``.pbg``.
    """
    segments = key.split("/")
    if not key or any(segment in {"", ".", "..", RESERVED} for segment in segments):
        raise ConfigError(
            f"{key!r} is no valid object key: a key is relative, and no part between its slashes may be empty, '.', "
            f"'..' or '{RESERVED}'"
        )
    if not key.isprintable() or "\\" in key:
        raise ConfigError(f"{key!r} is no valid object key: it holds a control character or a backslash")
    if len(key.encode()) > _KEY_BYTES or any(len(segment.encode()) > _SEGMENT_BYTES for segment in segments):
        raise ConfigError(
            f"object key {key[:60]!r}... is too long: at most {_KEY_BYTES} bytes in all and {_SEGMENT_BYTES} between "
            "two slashes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` when it can begin a valid key.

    Unlike a key it may be empty, or end in a slash or in the middle of a name.

    Raises:
        ConfigError: no valid key begins so.
    """
    if prefix:
        check_key(f"{prefix}x")
    return prefix


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of ``metadata`` when every store keeps it unchanged.

    Raises:
        ConfigError: a name is not ``[a-z0-9-]``, a value is not printable ASCII without blanks at its ends, or all
            of it is over 1900 bytes.
    """
    pairs = dict(metadata or {})
    for name, value in pairs.items():
        if not _METADATA_NAME.fullmatch(name):
            raise ConfigError(f"metadata name {name!r} may hold lower-case letters, digits and '-' only")
        if not _METADATA_VALUE.fullmatch(value):
            raise ConfigError(
                f"metadata {name}={value!r} must be printable ASCII, not empty, without blanks at its ends"
            )
    if sum(len(name) + len(value) for name, value in pairs.items()) > _METADATA_BYTES:
        raise ConfigError(f"metadata of one object is limited to {_METADATA_BYTES} bytes: store the rest in an object")
    return pairs


def join(prefix: str, name: str) -> str:
    """Return the key of ``name`` in a directory of keys.

    The empty prefix is the store's root.
    """
    return f"{prefix}/{name}" if prefix else name
