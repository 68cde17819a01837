"""Store in an S3 bucket, or on another server with conditional writes.

Every write carries a random write id in its metadata and, except for ``put``, a condition that the server decides. When
the answer of a write is lost, or a retry of the SDK meets the write's own first attempt, the store reads the id back:
it shows whether this write or another one took place, so that this is never guessed.

The file is longer than others so that all answers to a write that leave its outcome open are handled in one place.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from contextlib import AbstractContextManager, closing
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError, OvertakenError
from pbg_tasks.storage.base import Blob, ObjectInfo
from pbg_tasks.storage.files import disk_errors, landing
from pbg_tasks.storage.names import check_key, check_metadata, check_prefix, content_type
from pbg_tasks.storage.s3_answers import STAMP, Found, found_object, listed_object, tag_of
from pbg_tasks.storage.s3_client import TRANSPORT_ERRORS, connect, http_status, is_absent, s3_errors, version_errors
from pbg_tasks.storage.s3_patience import ATTEMPTS, is_refusal, leaves_open, pause, persistently
from pbg_tasks.storage.s3_transfer import (
    Condition,
    Place,
    Sizes,
    abort_old,
    copy_parts,
    download,
    read_range,
    upload_parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2RequestTypeDef

_KEPT_LEAST, _KEPT_MOST = 0.1, 5.0
"""Least and most seconds from the end of a conditional upload in parts to the check that it stayed."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_s3(url: str, environment: Mapping[str, str] | None = None) -> S3Store:
    """Open ``s3://bucket/prefix``; nothing is sent yet.

    Args:
        url: of the store.
        environment: see ``s3_client.connect``.

    Raises:
        ConfigError: the URL or the S3 settings of the environment are malformed.
    """
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{url!r}: {bucket!r} is no bucket name; write s3://bucket/prefix, without credentials")
    return S3Store(bucket, prefix, connect(environment))


class S3Store:
    """Store of objects below a prefix of a bucket.

    Args:
        bucket: its name; it must exist.
        prefix: key prefix, ``""`` for the whole bucket.
        client: a boto3 S3 client; it may be shared among threads.
        sizes: from which sizes on one request becomes many.
    """

    def __init__(self, bucket: str, prefix: str, client: S3Client, sizes: Sizes | None = None) -> None:
        self._bucket, self._client = bucket, client
        self._sizes = sizes or Sizes()
        self._prefix = f"{check_key(prefix.strip('/'))}/" if prefix.strip("/") else ""
        self._bucket_seen = False

    @property
    def url(self) -> str:
        """The root as ``s3://bucket/prefix``."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's facts with metadata; None without the object."""
        check_key(key)
        with self._errors(key):
            found = self._look(key)
        return None if found is None else found.info

    def get(self, key: str) -> Blob:
        """Read a small object as a whole; raises ``NotFoundError`` without it."""
        check_key(key)
        with self._errors(key):
            return persistently(self._get, key)

    def fetch(self, key: str, target: Path) -> ObjectInfo:
        """Download one version to a file that appears only when whole.

        It raises ``NotFoundError`` and ``ResourceError``.
        """
        check_key(key)
        with landing(target, durable=False) as sink, version_errors(self._client, self._url(key)):
            return download(self._place(key), key, sink, self._sizes)

    def get_range(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        """Read bytes ``start`` to ``stop`` of a version, where they exist."""
        stop = min(stop, info.size)
        with version_errors(self._client, self._url(info.key)):
            return read_range(self._place(info.key), info.tag, start, stop) if start < stop else b""

    def put_new(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Create an object; raises ``ConflictError`` when another writer created it."""
        return self._write(key, source, metadata, Condition(IfNoneMatch="*"), lambda found: found is None)

    def swap(
        self, key: str, source: bytes | Path, *, expected: ObjectInfo | None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Replace the version ``expected`` (None: create).

        It raises ``ConflictError`` when the object is another version.
        """
        if expected is None:
            return self.put_new(key, source, metadata=metadata)
        tag = expected.tag
        condition = Condition(IfMatch=f'"{tag}"')
        return self._write(key, source, metadata, condition, lambda found: found is not None and found.info.tag == tag)

    def put(self, key: str, source: bytes | Path, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Write an object without a condition."""
        return self._write(key, source, metadata, Condition(), lambda _: True)

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy an object and its metadata within the server.

        It raises ``ConflictError`` when ``target`` has other bytes.
        """
        check_key(target)
        original = self._required(source)
        with self._errors(target):
            existing = self._look(target)
            if existing is None:
                return self._settle(
                    target,
                    lambda: self._copy(original, target),
                    lambda found: self._same_bytes(original, found),
                    lambda found: found is None,
                )
            if self._same_bytes(original, existing):
                return existing.info
        raise self._conflict(target)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk objects by a prefix of keys, in key order, without metadata.

        All of them are read before the first is given: some servers do not list in key order.
        """
        check_prefix(prefix)
        found: list[ObjectInfo] = []
        with self._errors(prefix):
            for page in self._pages(prefix):
                found.extend(page)
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """Remove an object; removing one that does not exist is no error."""
        check_key(key)
        with self._errors(key):
            persistently(self._client.delete_object, Bucket=self._bucket, Key=self._prefix + key)

    def abort_uploads(self, prefix: str, *, before: float, dry_run: bool = False) -> int:
        """Abort multipart uploads that began before a time; return their number."""
        check_prefix(prefix)
        with self._errors(prefix):
            return persistently(abort_old, self._place(prefix), before, dry_run=dry_run)

    def _url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _place(self, key: str) -> Place:
        return Place(self._client, self._bucket, self._prefix + key)

    def _errors(self, key: str) -> AbstractContextManager[None]:
        return s3_errors(self._client, self._url(key))

    def _conflict(self, key: str, *, lost: bool = False) -> ConflictError:
        if lost:
            return OvertakenError(
                f"{self._url(key)}: another writer's object is there; the answer to this write was lost, so it did not "
                "take place, or did and was replaced since: look at the object before writing it again"
            )
        return ConflictError(f"{self._url(key)}: another writer was first, nothing was overwritten")

    def _required(self, key: str) -> Found:
        check_key(key)
        with self._errors(key):
            found = self._look(key)
        if found is None:
            raise NotFoundError(f"{self._url(key)} does not exist at {self._client.meta.endpoint_url}")
        return found

    def _look(self, key: str) -> Found | None:
        try:
            return persistently(self._head, key)
        except ClientError as error:
            if not is_absent(error):
                raise
            self._require_bucket()
            return None

    def _head(self, key: str) -> Found:
        answer = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        return found_object(key, answer)

    def _require_bucket(self) -> None:
        """Raise an error where the bucket is missing, not the object.

        S3 answers a HEAD of either alike. The bucket is looked up once.
        """
        if self._bucket_seen:
            return
        try:
            persistently(self._client.head_bucket, Bucket=self._bucket)
        except ClientError as error:
            if http_status(error) == HTTPStatus.NOT_FOUND:
                where = self._client.meta.endpoint_url
                raise ConfigError(
                    f"bucket {self._bucket} does not exist at {where}; create it or correct the URL"
                ) from error
            if http_status(error) != HTTPStatus.FORBIDDEN:  # a narrow policy may allow objects only
                raise
        self._bucket_seen = True

    def _pages(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """List by pages; only a page that fails is requested again."""
        request: ListObjectsV2RequestTypeDef = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        while True:
            page, following = persistently(self._page, request)
            yield page
            if following is None:
                return
            request["ContinuationToken"] = following

    def _page(self, request: ListObjectsV2RequestTypeDef) -> tuple[Sequence[ObjectInfo], str | None]:
        """Return a page's objects, and the token of the next page.

        The token is None after the last page.
        """
        answer = self._client.list_objects_v2(**request)
        entries = [entry for entry in answer.get("Contents", []) if not entry["Key"].endswith("/")]  # tools' folders
        found = [listed_object(entry["Key"].removeprefix(self._prefix), entry) for entry in entries]
        return found, answer["NextContinuationToken"] if answer.get("IsTruncated") else None

    def _get(self, key: str) -> Blob:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
        with closing(answer["Body"]) as body:
            data = body.read()
        return Blob(found_object(key, {**answer, "ContentLength": len(data)}).info, data)

    def _write(
        self,
        key: str,
        source: bytes | Path,
        metadata: Mapping[str, str] | None,
        condition: Condition,
        is_expected: Callable[[Found | None], bool],
    ) -> ObjectInfo:
        check_key(key)
        pairs = check_metadata(metadata)
        write_id = secrets.token_hex(16)
        stamped = {**pairs, STAMP: write_id}

        def send() -> ObjectInfo:
            size, tag = self._send(key, source, stamped, condition)
            return ObjectInfo(key, size, tag, pairs)

        with self._errors(key):
            return self._settle(key, send, lambda found: found.write_id == write_id, is_expected)

    def _send(
        self, key: str, source: bytes | Path, metadata: Mapping[str, str], condition: Condition
    ) -> tuple[int, str]:
        """Send an object, without repeating it; return its size and tag."""
        if isinstance(source, Path):
            with disk_errors(source):
                size = source.stat().st_size
                if size <= self._sizes.part:
                    source = source.read_bytes()
        if isinstance(source, Path):
            done = upload_parts(self._place(key), source, size, metadata, condition, self._sizes)
            if condition:
                self._check_kept(key, metadata[STAMP], done.seconds)
            return size, done.tag
        answer = self._client.put_object(
            Bucket=self._bucket,
            Key=self._prefix + key,
            Body=source,
            Metadata=metadata,
            ContentType=content_type(key),
            **condition,
        )
        return len(source), tag_of(answer)

    def _check_kept(self, key: str, write_id: str, seconds: float) -> None:
        """Check that an object uploaded in parts was not replaced at once.

        SeaweedFS (4.48) first checks the condition of a completion and then writes: of several completions at one
        moment more than one are reported as successful, and the last one stays. So the check waits until all
        completions that began at the same time have ended.

        Args:
            key: of the object.
            write_id: of this write.
            seconds: that the completion took. Another one that began before it ended takes hardly twice as long.
        """
        time.sleep(min(max(_KEPT_LEAST, 2 * seconds), _KEPT_MOST))
        found = self._look(key)
        if found is not None and found.write_id != write_id:
            raise OvertakenError(f"{self._url(key)}: this write took place, and another writer has replaced it since")

    def _settle(
        self,
        key: str,
        send: Callable[[], ObjectInfo],
        is_ours: Callable[[Found], bool],
        is_expected: Callable[[Found | None], bool],
    ) -> ObjectInfo:
        """Send a write until it is known which write took place.

        It may be this one or another's.

        Raises:
            ConflictError: the stored object is neither this write's nor one that it may replace.
            OvertakenError: the same, and an answer was lost, so that this write may have taken place before the other.
        """
        attempt, lost = 0, False
        while True:
            attempt += 1
            try:
                return send()
            except (EndpointConnectionError, ConnectTimeoutError):
                raise  # the SDK tried three times, and no server answers a look either
            except (ClientError, *TRANSPORT_ERRORS) as error:
                if isinstance(error, ClientError) and not leaves_open(error):
                    raise
                found = self._look(key)
                if found is not None and is_ours(found):
                    return found.info
                lost = lost or not is_refusal(error)
                if not is_expected(found):
                    raise self._conflict(key, lost=lost) from error
                if attempt == ATTEMPTS:
                    raise
            pause(attempt)

    def _copy(self, original: Found, target: str) -> ObjectInfo:
        info, source = original.info, self._prefix + original.info.key
        if info.size > self._sizes.copy:
            stamped = dict(info.metadata) | ({STAMP: original.write_id} if original.write_id else {})
            tag = copy_parts(self._place(target), source, info.tag, info.size, stamped, self._sizes)
        else:
            answer = self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + target,
                CopySource={"Bucket": self._bucket, "Key": source},
                CopySourceIfMatch=f'"{info.tag}"',
                IfNoneMatch="*",
            )
            tag = tag_of(answer.get("CopyObjectResult", {}))
        return ObjectInfo(target, info.size, tag, info.metadata)

    def _same_bytes(self, one: Found, other: Found) -> bool:
        """Return whether two objects have equal bytes.

        A copy keeps the write id, so that only objects of other programs have to be read.
        """
        if one.info.size != other.info.size:
            return False
        if one.write_id is not None and one.write_id == other.write_id:
            return True
        if one.info.tag == other.info.tag:
            return True
        return persistently(self._digest, one.info) == persistently(self._digest, other.info)

    def _digest(self, info: ObjectInfo) -> str:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + info.key, IfMatch=f'"{info.tag}"')
        digest = hashlib.sha256()
        with closing(answer["Body"]) as body:
            for chunk in body.iter_chunks(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()
