"""Filesystem of objects on an S3 server, read by DuckDB and Arrow.

fsspec matches patterns and reads ahead. The requests are those of the store's client, so a task has one SDK and one set
of rules for endpoints, redirects, retries and errors.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from pbg_tasks.storage.s3_answers import found_object, listed_object
from pbg_tasks.storage.s3_client import connect, error_code, is_absent, s3_errors, version_errors
from pbg_tasks.storage.s3_patience import persistently
from pbg_tasks.storage.s3_transfer import Place, read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pbg_tasks.storage.base import ObjectInfo

_BLOCK = 8 << 20
"""Bytes that are read ahead."""

Answer = TypeVar("Answer")


class S3Filesystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Filesystem to read from; its paths are ``bucket/key``.

    Its errors are those of a store, and ``FileNotFoundError``.

    Args:
        environment: see ``s3_client.connect``.
    """

    protocol = "s3"
    cachable = False

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.client = connect(environment)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget the objects that were described."""
        del path
        self.dircache.clear()

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Return the facts of an object or folder."""
        path = self._strip_protocol(path)
        for known in self._ls_from_cache(path) or ():
            if known["name"] == path:
                return dict(known)
        if "/" in path:  # else it is a bucket
            with suppress(FileNotFoundError):
                return self._ask(path, self._head, path)
        if not any(self._listed(path, Delimiter="/", MaxKeys=1)):
            raise FileNotFoundError(path)
        return _folder(path)

    def exists(self, path: str, **_: object) -> bool:
        """Return whether an object or folder is there."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:  # noqa: FBT001, FBT002 - as fsspec calls it
        """List a folder."""
        path = self._strip_protocol(path)
        found = list(self._listed(path, Delimiter="/"))
        return found if detail else [each["name"] for each in found]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,  # noqa: FBT001, FBT002 - as fsspec calls it
        detail: bool = False,  # noqa: FBT001, FBT002
        **_: object,
    ) -> dict[str, Any] | list[str]:
        """List below a folder; with no depth, its objects at once."""
        path = self._strip_protocol(path)
        below = self._listed(path) if maxdepth is None else self._levels(path, maxdepth)
        found = {each["name"]: each for each in below if withdirs or each["type"] == "file"}
        return dict(sorted(found.items())) if detail else sorted(found)

    def modified(self, path: str) -> datetime:
        """Return the time at which an object was written."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def _open(self, path: str, mode: str = "rb", **_: object) -> _Object:
        return _Object(self, path, mode, block_size=_BLOCK)

    def _listed(self, folder: str, **request: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - the SDK's
        """List objects and folders, by pages; none where nothing is there."""
        bucket, _slash, key = folder.partition("/")
        request |= {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}
        following: str | None = ""
        while following is not None:
            page, following = self._ask(folder, self._page, request)
            yield from page
            request["ContinuationToken"] = following

    def _levels(self, folder: str, depth: int) -> Iterator[dict[str, Any]]:
        for each in self._listed(folder, Delimiter="/"):
            yield each
            if depth > 1 and each["type"] == "directory":
                yield from self._levels(each["name"], depth - 1)

    def _ask(self, path: str, ask: Callable[..., Answer], *given: object) -> Answer:
        with s3_errors(self.client, f"s3://{path}"):
            try:
                return persistently(ask, *given)
            except ClientError as error:
                if is_absent(error) or error_code(error) == "NoSuchBucket":
                    raise FileNotFoundError(path) from error
                raise

    def _head(self, path: str) -> dict[str, Any]:
        bucket, _, key = path.partition("/")
        answer = self.client.head_object(Bucket=bucket, Key=key)
        return _file(path, found_object(key, answer).info)

    def _page(self, request: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of a listing, and the next one's token.

        Objects that stand for folders are left out. The token is None after the last page.
        """
        answer, bucket = self.client.list_objects_v2(**request), request["Bucket"]
        folders = [_folder(f"{bucket}/{each['Prefix'].removesuffix('/')}") for each in answer.get("CommonPrefixes", [])]
        entries = [each for each in answer.get("Contents", []) if not each["Key"].endswith("/")]
        files = [_file(f"{bucket}/{each['Key']}", listed_object(each["Key"], each)) for each in entries]
        return folders + files, answer["NextContinuationToken"] if answer.get("IsTruncated") else None


class _Object(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """Object of which all reads name the version that was opened."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        bucket, _, key = self.path.partition("/")
        with version_errors(self.fs.client, f"s3://{self.path}"):
            return read_range(Place(self.fs.client, bucket, key), self.details["ETag"], start, end)


def _file(path: str, info: ObjectInfo) -> dict[str, Any]:
    return {"name": path, "type": "file", "size": info.size, "ETag": info.tag, "mtime": info.modified}


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "type": "directory", "size": 0}
