"""Local copies of a store's files, of which no more are kept than the disk has room for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Copies:
    """Files that are brought to the local disk, and stay there while it has room.

    Where it has not, the one that came last goes first: who asks for all of them again and again finds the others still
    there. For one thread at a time: a file that was given may be gone once the next is asked for.

    Args:
        reserve: bytes of the disk that are left to what else is written there.
    """

    def __init__(self, reserve: int = 0) -> None:
        self._reserve = reserve
        self._sizes: dict[Path, int] = {}  # in the order in which they came

    def bring(self, path: Path, size: int, fetch: Callable[[], object]) -> Path:
        """Return a file's path.

        Args:
            path: of the file.
            size: bytes of it.
            fetch: makes it, where it is not there.
        """
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(path, 0 if path in self._sizes else size)
        if path not in self._sizes:
            fetch()
            self._sizes[path] = size
        return path

    def _make_room(self, wanted: Path, size: int) -> None:
        """Remove others: for ``size`` bytes, and for what was written by somebody else since the last time."""
        lacking = size + self._reserve - shutil.disk_usage(wanted.parent).free
        for path in [path for path in reversed(self._sizes) if path != wanted]:
            if lacking <= 0:
                return
            lacking -= self._sizes.pop(path)
            path.unlink(missing_ok=True)
