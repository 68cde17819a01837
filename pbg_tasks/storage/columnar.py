"""Files of a snapshot, and filesystems through which they are read.

DuckDB and Arrow, the columnar readers, open a snapshot's files through an fsspec filesystem.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import sys
import time
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import AccessError, ConfigError, InputError, StorageError
from pbg_tasks.redaction import credentials_in, shown
from pbg_tasks.storage.names import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import fsspec

CHANGED = "changed since the run was planned; plan the snapshot again"
_ABSENT = "no snapshot there (no such file, or no files in it); check the key and location"
_WILDCARDS = frozenset("*?[")
_PACKED = re.compile(r"\.(gz|gzip|bz2|zst|zstd)$", re.IGNORECASE)
_FILESYSTEMS = 32  # kept ones, of 2 MB each: a triggerer lists for all graphs, each of which may have a connection
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP}


class NoFilesError(InputError):
    """Error: a location has no files, which may come later."""


def filesystem_for(url: str, environment: Mapping[str, str] = os.environ) -> fsspec.AbstractFileSystem:
    """Return the fsspec filesystem of a URL.

    It is s3fs for ``s3://``, else the local disk. Endpoint and credentials are those of ``storage.open_store``: the AWS
    environment or profile. A process that works for several stores at once gives another environment than its own.

    Nothing is read ahead, as DuckDB requests the ranges of the columns it needs. ``open(url, cache_type="readahead")``
    suits readers of whole files.

    Raises:
        ConfigError: the URL is of another kind or holds credentials, or the endpoint is not allowed.
    """
    if found := credentials_in(url):
        raise ConfigError(f"{shown(url)} holds {found}: write the place alone, as for a store")
    protocol = url.partition("://")[0] if "://" in url else "file"
    if protocol == "s3":
        from pbg_tasks.storage.endpoint import ALLOWED_VARIABLE

        named = (item for item in environment.items() if item[0].startswith("AWS_") or item[0] == ALLOWED_VARIABLE)
        return _s3(tuple(sorted(named)))
    if protocol == "file":
        return _disk()
    raise ConfigError(f"{url}: snapshots are read from s3:// or a local path, not from {protocol}://")


@cache
def _disk() -> fsspec.AbstractFileSystem:
    """Build the filesystem of the local disk."""
    from fsspec.implementations.local import LocalFileSystem

    class WholeDisk(LocalFileSystem):  # type: ignore[misc] # fsspec has no types
        def info(self, path: Any, **named: Any) -> dict[str, Any]:  # noqa: ANN401 - fsspec's arguments
            # fsspec follows a link that is named, but not in a listing, which would lack what it leads to.
            linked = isinstance(path, os.DirEntry) and path.is_symlink() and not is_hidden(path.name)
            found: dict[str, Any] = {}
            try:
                found = super().info(path.path if linked else path, **named)
            except OSError as error:
                if not linked or error.errno not in _NOWHERE:
                    raise
            if not found or (linked and found["type"] == "directory" and _leads_back(path.path)):
                found = super().info(path, **named)  # as a link, which is neither file nor folder
            return found

        def ls(self, path: str, *given: Any, **named: Any) -> list[Any]:  # noqa: ANN401 - fsspec's arguments
            with no_omission(path):
                listed: list[Any] = super().ls(path, *given, **named)
                return listed

    return WholeDisk()


def _leads_back(link: str) -> bool:
    """Return whether a link leads to a folder that it is in.

    Followed, it would be listed for ever.
    """
    place = Path(link)
    return place.resolve() in {folder.resolve() for folder in place.parents}


@lru_cache(maxsize=_FILESYSTEMS)
def _s3(environment: tuple[tuple[str, str], ...]) -> fsspec.AbstractFileSystem:
    """Build the S3 filesystem, once for each state of the AWS environment.

    The SDK finds settings that the variables leave out, for example those of a profile.
    """
    # The imports are here because a local snapshot needs neither the AWS SDK nor an HTTP client.
    from aiobotocore.session import AioSession

    from pbg_tasks.storage.endpoint import ENDPOINT_VARIABLES, Endpoints
    from pbg_tasks.storage.s3_async import WholeListings, session_class
    from pbg_tasks.storage.s3_client import connect, share_service_data

    given = dict(environment)
    with closing(connect(given)):  # refuses an endpoint that is not allowed, also a profile's
        sessions = session_class(Endpoints(given))
    retries = {"mode": "standard", "total_max_attempts": 2}
    authority = {"verify": given["AWS_CA_BUNDLE"]} if given.get("AWS_CA_BUNDLE") else {}
    key, region = given.get("AWS_ACCESS_KEY_ID"), given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION")
    session = AioSession(profile=None if key else given.get("AWS_PROFILE"))  # as in the SDK, keys go before a profile
    share_service_data(session)
    return WholeListings(
        session=session,
        key=key,
        secret=given.get("AWS_SECRET_ACCESS_KEY"),
        token=given.get("AWS_SESSION_TOKEN"),
        endpoint_url=next((given[name] for name in ENDPOINT_VARIABLES if given.get(name)), None),
        client_kwargs=authority | ({"region_name": region} if region else {}),
        config_kwargs={"connect_timeout": 5, "read_timeout": 60, "retries": retries, "http_session_cls": sessions},
        default_block_size=8 << 20,
        default_cache_type="none",
        use_listings_cache=True,  # for ``describe_once``; whatever is listed is listed anew
        skip_instance_cache=True,
    )


def _listed_anew(url: str, environment: Mapping[str, str] = os.environ) -> fsspec.AbstractFileSystem:
    """Return a URL's filesystem, which lists everything anew.

    A snapshot written a moment ago must be found.
    """
    filesystem = filesystem_for(url, environment)
    filesystem.invalidate_cache()
    return filesystem


def describe_once(uris: Sequence[str]) -> fsspec.AbstractFileSystem:
    """Return the filesystem of objects, which knows their descriptions.

    A reader that asks for them again and again, as DuckDB does for each thread, then sends no request. An object that
    is replaced meanwhile cannot be read any more, as each request names the version.

    Raises:
        InputError: there is no such object.
        AccessError: reading it is not permitted.
        StorageError: the store cannot be reached.
    """
    filesystem = _listed_anew(uris[0])
    folders: dict[str, list[dict[str, Any]]] = {}
    for uri in uris:
        with read_errors(uri):
            info = filesystem.info(uri)
        folders.setdefault(info["name"].rpartition("/")[0], []).append(info)
    filesystem.dircache.update(folders)
    return filesystem


def list_files(
    location: str, environment: Mapping[str, str] = os.environ, *, distinct: bool = True
) -> list[tuple[str, int, str]]:
    """List the files of a snapshot as ``(uri, bytes, version)``, sorted.

    Files of different versions have different bytes. Links on a disk are followed; one that leads nowhere, or to a file
    that is listed already, is refused, as is a file beside its compressed copy.

    Args:
        location: a file; a folder, without the files and folders in it that are named ``_...`` or ``.`` at any level;
            or a glob, to whose matches the same applies.
        environment: variables with the store's endpoint and credentials.
        distinct: refuse a file that is listed twice; not for a folder of several snapshots.

    Raises:
        NoFilesError: the location has no files.
        InputError: one has a wildcard in its name, or is there twice.
        AccessError: reading it is not permitted.
        StorageError: the store cannot be reached.
    """
    found = _listed(location, environment)
    if strange := next((info["name"] for info in found if info["type"] != "file"), None):
        raise InputError(f"{strange}: is a link that leads nowhere, or back, or no plain file; restore or remove it")
    files = [
        (_uri(location, info["name"]), int(info["size"]), _version(info))
        for info in found
        if info["size"] or not info["name"].endswith("/")  # tools' folders in S3
    ]
    if not files:
        raise NoFilesError(f"{location}: {_ABSENT}")
    if named := next((uri for uri, _, _ in sorted(files) if _WILDCARDS & set(uri)), None):
        raise InputError(f"{named}: the name holds *, ? or [, which would stand for other names, too; rename it")
    texts = dict[str, str]()
    for uri in sorted(uri for uri, _, _ in files if distinct):
        if (same := texts.setdefault(_PACKED.sub("", uri), uri)) != uri:
            raise InputError(f"{uri}: is named as a copy of {same}, so that its edges would count twice; remove one")
    real = cache(lambda folder: Path(folder).resolve())  # once each: it looks at every part of a path
    links, places = {info["name"] for info in found if info.get("islink")}, dict[Path, str]()
    for uri in sorted(uri for uri, _, _ in files if distinct and "://" not in uri):
        folder, _, name = uri.rpartition("/")
        if (same := places.setdefault(Path(uri).resolve() if uri in links else real(folder or "/") / name, uri)) != uri:
            raise InputError(f"{uri}: is {same} by a link, so that its edges would count twice; remove one of the two")
    return sorted(files)


def newest_file(location: str, above: str = "/") -> tuple[str, float]:
    """Return a snapshot's newest file, and its age in seconds.

    In S3 the age is by the store's clock, from which this machine's may differ by minutes.

    Args:
        location: of the snapshot.
        above: folder of all snapshots. A link on the way to it, which a pod may make at its start, dates none of them.

    Raises:
        InputError: the location has no files.
        AccessError: reading it is not permitted.
        StorageError: the store cannot be reached.
    """
    folder = Path(filesystem_for(location)._strip_protocol(above))  # noqa: SLF001 (as in _listed)
    fixed = {folder, *folder.parents}
    linked = cache(lambda place: 0.0 if place in fixed else _linked(place))  # once each folder
    found = [(_written(info, linked), info["name"]) for info in _listed(location, os.environ)]
    if not found:
        raise InputError(f"{location}: {_ABSENT}")
    written, name = max(found)
    return _uri(location, name), _clock(location, name) - written


def _written(info: dict[str, Any], linked: Callable[[Path], float]) -> float:
    """Return when a file came.

    A copy may have kept the date of its original, and what a link leads to, also one to a folder, may have been there
    before it.
    """
    if "LastModified" in info:
        return float(info["LastModified"].timestamp())
    place = Path(info["name"])
    places = [place, *place.parents] if info["islink"] else place.parents
    return float(max(info["mtime"], info["created"], *map(linked, places)))


def _linked(place: Path) -> float:
    """Return when a link was made; 0 where there is none."""
    with suppress(OSError):  # it was removed meanwhile
        return place.lstat().st_ctime if place.is_symlink() else 0.0
    return 0.0


def _clock(location: str, name: str) -> float:
    """Return the time by the clock that dates a file.

    Of an object that was removed meanwhile it is this machine's.
    """
    date = None
    if location.startswith("s3://"):
        filesystem = filesystem_for(location)
        bucket, key, _ = filesystem.split_path(name)
        with read_errors(location), suppress(FileNotFoundError):
            answer = filesystem.call_s3("head_object", Bucket=bucket, Key=key)
            date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(date).timestamp() if date else time.time()


def _listed(location: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """List all but folders and what is hidden."""
    filesystem = _listed_anew(location, environment)
    with read_errors(location):
        if _WILDCARDS & set(location):
            root = location[: min(location.index(sign) for sign in _WILDCARDS & set(location))].rpartition("/")[0]
            found = filesystem.glob(location, detail=True)
        else:
            root, info = location, filesystem.info(location)
            found = {location: info} if info["type"] == "file" else filesystem.find(location, detail=True)
    root = filesystem._strip_protocol(root)  # noqa: SLF001 (fsspec has no public name for it)
    visible = (info for info in found.values() if not is_hidden(info["name"].removeprefix(root)))
    return [info for info in visible if info["type"] != "directory"]


def check_unchanged(uri: str, size: int, version: str) -> None:
    """Refuse a file that differs from the planned one.

    Raises:
        InputError: it has changed, or is gone.
        AccessError: reading it is not permitted.
        StorageError: the store cannot be reached.
    """
    if [found[1:] for found in list_files(uri)] != [(size, version)]:
        raise InputError(f"{uri}: {CHANGED}")


def list_keys(template: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """List the values of ``{snapshot}`` in a location, sorted as text.

    The list is empty while the location has no snapshot. Only the level with ``{snapshot}`` is listed, so the number of
    files in a snapshot does not matter. A link on a disk without a digit in its name, such as ``latest``, is left out
    where it leads to another of the keys: it would count as the newest for good.

    Raises:
        AccessError: reading is not permitted.
        StorageError: the store cannot be reached.
    """
    head, _, tail = template.partition("{snapshot}")
    before, after = head.rpartition("/")[2], tail.partition("/")[0]
    with read_errors(template):
        there = _listed_anew(template, environment).glob(f"{head}*{after}", detail=True)
    form = re.compile(f"{re.escape(before)}([A-Za-z0-9][A-Za-z0-9_.:+-]{{0,63}}?){fnmatch.translate(after)}")
    found = ((place, form.fullmatch(place.rstrip("/").rpartition("/")[2])) for place in there)
    keys = {place: match[1] for place, match in found if match}
    links = {place for place, key in keys.items() if there[place].get("islink") and not re.search("[0-9]", key)}
    own = {Path(place).resolve() for place in keys.keys() - links} if links else set()
    return sorted({key for place, key in keys.items() if place not in links or Path(place).resolve() not in own})


def is_file(filesystem: fsspec.AbstractFileSystem, url: str) -> bool:
    """Return whether a file is there.

    Unlike fsspec's ``isfile``, it does not take an error of the store for a file's absence.
    """
    try:
        return bool(filesystem.info(url)["type"] == "file")
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def read_errors(location: str, done: str = "listed") -> Iterator[None]:
    """Turn errors of the filesystems into errors of this package.

    Args:
        location: the place that is read, for the message.
        done: what was to be done with it, as a participle, for the message.

    Raises:
        NoFilesError: the location has no files.
        AccessError: reading it is not permitted.
        StorageError: the store cannot be reached.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise NoFilesError(f"{location}: {_ABSENT}") from error
    except _errors(PermissionError, "NoCredentialsError") as error:
        raise AccessError(
            f"{location}: reading is refused ({error}); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or the file mode"
        ) from error
    except _errors(OSError, "BotoCoreError", "ClientError") as error:
        advice = "check AWS_ENDPOINT_URL"
        if "SSL validation failed" in str(error) and "EOF occurred" not in str(error):  # else it broke off
            advice += ", and name the file of a private certificate authority in AWS_CA_BUNDLE"
        raise StorageError(f"{location}: cannot be {done} ({error}); {advice}") from error


@contextmanager
def no_omission(folder: str) -> Iterator[None]:
    """Make a folder that cannot be listed an error of this package.

    fsspec takes errors of the system for an empty folder: a snapshot would lack its files, without a word.

    Raises:
        AccessError: listing it is not permitted.
        StorageError: the store failed.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError:
        with read_errors(folder):
            raise


def _errors(own: type[Exception], *names: str) -> tuple[type[Exception], ...]:
    """Return an error class of Python, and classes of the AWS SDK.

    The latter are looked up when an error has come, because a local snapshot needs no SDK: without it, no error is of
    its classes.
    """
    sdk = sys.modules.get("botocore.exceptions")
    return (own,) if sdk is None else (own, *(getattr(sdk, name) for name in names))


def _uri(location: str, name: str) -> str:
    return f"s3://{name}" if location.startswith("s3://") else name


def _version(info: dict[str, Any]) -> str:
    return str(info.get("ETag") or f"{info['mtime']}-{info['ino']}").strip('"')
