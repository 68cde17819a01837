"""Local files whose bytes are known to be right.

This process wrote them, or compared them with a recorded hash. The identity by which a file is known changes with its
bytes. A file that is not known is examined again and nothing worse, so that it is harmless to forget one.
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
    """Identity of a file's version; another version differs in a field."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Take the identity from a file's status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def vouch(path: Path) -> None:
    """Record that this project wrote, or has checked, a file's bytes."""
    identity = Identity.of(path.stat())
    with _lock:
        _known.pop(identity, None)
        _known[identity] = None
        if len(_known) > _MOST:
            del _known[next(iter(_known))]


def set_time(path: Path, moment: int) -> None:
    """Set the time of a file whose bytes stay.

    A file that is known stays known, also to a reader that opens it at this moment.

    Args:
        path: of the file.
        moment: time in nanoseconds since 1970.
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
