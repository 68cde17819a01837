"""Files to a real S3 server and back, verified, against plain boto3."""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from benchmarks.speed.measurement import Measurement, in_turns, per_second
from examples.stack.object_store import ObjectStore
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import fetch_verified, put_all_new

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_MIB, _QUICK_MIB = 256, 64
_NOTE = "wall time; ours computes and compares SHA-256 as well, and its writes are conditional"


class Ours:
    """Our staging.

    Args:
        bucket: name.
        source: file to send.
    """

    def __init__(self, bucket: str, source: str) -> None:
        self._store, self._source = open_store(f"s3://{bucket}/ours"), Path(source)
        self._numbers = count()
        self._stored = put_all_new(self._store, {"kept": self._source})["kept"]

    def upload(self) -> int:
        """Send the file under a new key; return its bytes."""
        key = f"new-{next(self._numbers)}"
        put_all_new(self._store, {key: self._source})
        self._store.delete(key)
        return self._stored["size"]

    def download(self) -> int:
        """Fetch and verify it; return its bytes."""
        target = self._source.with_suffix(".ours")
        fetch_verified(self._store, "kept", target, **self._stored)
        target.unlink()
        return self._stored["size"]


class Plain:
    """boto3's own transfers, as they are by default.

    Args:
        bucket: name.
        source: file to send.
    """

    def __init__(self, bucket: str, source: str) -> None:
        self._client, self._bucket, self._source = boto3.client("s3"), bucket, Path(source)
        self._client.upload_file(source, bucket, "plain/kept")

    def upload(self) -> int:
        """Send the file; return its bytes."""
        self._client.upload_file(str(self._source), self._bucket, "plain/new")
        self._client.delete_object(Bucket=self._bucket, Key="plain/new")
        return self._source.stat().st_size

    def download(self) -> int:
        """Fetch it; return its bytes."""
        target = self._source.with_suffix(".plain")
        self._client.download_file(self._bucket, "plain/kept", str(target))
        size = target.stat().st_size
        target.unlink()
        return size


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Send and fetch one large file."""
    size = _QUICK_MIB if quick else _MIB
    source = tools.directory / "file"
    source.write_bytes(os.urandom(size << 20))
    with ObjectStore(tools.directory / "s3") as server:
        server.create_bucket("bench")
        ours, plain = (
            tools.ours(f"{__name__}:{name}", environment=server.environment(), bucket="bench", source=str(source))
            for name in ("Ours", "Plain")
        )
        with ours, plain:
            found = []
            for what in ("upload", "download"):
                rounds = in_turns(tools.pairs, {"ours": partial(ours, what), "theirs": partial(plain, what)})
                title = f"S3 {what} of {size} MiB, against boto3"
                found.append(Measurement.rate(title, "B/s", rounds["ours"], rounds["theirs"], per_second, note=_NOTE))
    return found
