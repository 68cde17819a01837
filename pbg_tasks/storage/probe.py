"""Test of a store's conditional writes, before a run relies on them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError, ConflictError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.storage.base import ObjectInfo, Store


_OTHERS = "use Amazon S3, SeaweedFS, a recent MinIO or a local directory"


def probe(store: Store) -> None:
    """Refuse a store that ignores or refuses the conditions of writes.

    On such a store two writers would overwrite each other unnoticed. The probe writes a tiny object of a random name
    below ``.probe/`` and removes it, so any number of probes may run at once.

    Raises:
        ConfigError: a write took place although its condition did not hold, or the store refuses such writes, or all.
        AccessError: the credentials do not allow to write, read and delete here.
        StorageError: the store cannot be reached.
    """
    key = f".probe/{secrets.token_hex(8)}"
    try:
        first = store.put_new(key, b"1")
        _must_conflict(store, "If-None-Match", lambda: store.put_new(key, b"2"))
        store.swap(key, b"3", expected=first)
        _must_conflict(store, "If-Match", lambda: store.swap(key, b"4", expected=first))
    except UnsupportedError as error:
        raise ConfigError(f"{error}: {_refused(store, key)}") from error
    finally:
        store.delete(key)


def _refused(store: Store, key: str) -> str:
    """Return what a store refuses: conditions, or any write.

    Over https the SDK sends a checksum behind the bytes, which not every server knows.
    """
    try:
        store.put(key, b"5")
    except UnsupportedError:
        return (
            "this store refuses writes without a condition, too; where it does not know the checksums of the SDK, set "
            "AWS_REQUEST_CHECKSUM_CALCULATION=when_required in the environment of every process that uses it"
        )
    return (
        "this store refuses conditional writes (If-None-Match, If-Match), without which two runs could overwrite each "
        f"other unnoticed; {_OTHERS}"
    )


def _must_conflict(store: Store, condition: str, write: Callable[[], ObjectInfo]) -> None:
    try:
        write()
    except ConflictError:
        return
    raise ConfigError(
        f"{store.url}: this store ignores conditional writes ({condition}), so two runs could overwrite each other "
        f"unnoticed; {_OTHERS}"
    )
