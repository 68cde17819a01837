"""Finding a snapshot's files and giving columnar readers a filesystem for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import InputError

if TYPE_CHECKING:
    import fsspec


def filesystem_for(url: str) -> fsspec.AbstractFileSystem:
    """Return the fsspec filesystem of a URL: s3fs for ``s3://``, else the local disk."""
    import fsspec

    protocol = url.partition("://")[0] if "://" in url else "file"
    return fsspec.filesystem(protocol)


def list_files(location: str) -> list[tuple[str, int, str]]:
    """List (uri, bytes, version) of a file, a folder or a glob, sorted."""
    filesystem = filesystem_for(location)
    prefix = "s3://" if location.startswith("s3://") else ""
    filesystem.invalidate_cache()
    try:
        if any(char in location for char in "*?["):
            found = filesystem.glob(location, detail=True)
        elif filesystem.isdir(location):
            found = filesystem.find(location, detail=True)
        else:
            found = {location: filesystem.info(location)}
    except FileNotFoundError:
        found = {}
    files = [
        (prefix + info["name"].removeprefix("s3://"), int(info["size"]), _version(info))
        for info in found.values()
        if info["type"] == "file" and not info["name"].rpartition("/")[2].startswith(("_", "."))
    ]
    if not files:
        raise InputError(f"{location}: no such snapshot (no file there)")
    return sorted(files)


def _version(info: dict[str, Any]) -> str:
    return str(info.get("ETag") or f"{info.get('mtime')}-{info.get('ino')}").strip('"')
