"""Local files whose bytes are known: this process wrote them, or compared them with a recorded hash.

What a file is known by changes with its bytes. One that is not known costs an examination and nothing else, so that
forgetting is harmless.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pathlib import Path

_MOST = 1 << 16
_known: dict[Identity, None] = {}
_lock = threading.Lock()


class Identity(NamedTuple):
    """The version of a file: another one differs in at least one of these."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Take it from a file's status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def vouch(path: Path) -> None:
    """Remember that the bytes of a file are those that this project wrote."""
    identity = Identity.of(path.stat())
    with _lock:
        _known.pop(identity, None)
        _known[identity] = None
        if len(_known) > _MOST:
            del _known[next(iter(_known))]


def set_time(path: Path, moment: int) -> None:
    """Set the time of a file whose bytes stay; what is known of it stays known, also to one that reads it now.

    Args:
        path: of the file.
        moment: nanoseconds of the epoch.
    """
    with _lock:
        known = Identity.of(path.stat()) in _known
        os.utime(path, ns=(moment, moment))
        if known:
            _known[Identity.of(path.stat())] = None


def is_vouched(identity: Identity) -> bool:
    """Return whether ``vouch`` was called for exactly this version of a file."""
    with _lock:
        return identity in _known
