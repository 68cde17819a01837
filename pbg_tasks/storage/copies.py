"""Local copies of a store's files, within the disk's free space."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pbg_tasks.storage.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Copies:
    """Local copies that stay while the disk has room.

    Where it has not, the file that was fetched last is removed first: a reader that goes through all files again and
    again then finds the earlier ones still there. Use it in one thread at a time: a file that was returned may be
    removed when the next one is requested.

    Args:
        reserve: bytes of the disk to leave free for other files.
    """

    def __init__(self, reserve: int = 0) -> None:
        self._reserve = reserve
        self._sizes: dict[Path, int] = {}  # in the order in which they were fetched

    def bring(self, path: Path, size: int, fetch: Callable[[], object]) -> Path:
        """Return a file's path, fetching it where there is no copy.

        Args:
            path: of the copy.
            size: of the file, in bytes.
            fetch: writes the copy; called only where there is none.
        """
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(path, 0 if path in self._sizes else size)
        if path not in self._sizes:
            fetch()
            self._sizes[path] = size
        return path

    def clear(self) -> None:
        """Remove all copies."""
        for path in self._sizes:
            path.unlink(missing_ok=True)
        self._sizes.clear()

    def _make_room(self, wanted: Path, size: int) -> None:
        """Remove other copies until ``size`` bytes fit.

        Files that other processes wrote since the last call also count, because the free space is measured anew.
        """
        lacking = size + self._reserve - shutil.disk_usage(wanted.parent).free
        for path in [path for path in reversed(self._sizes) if path != wanted]:
            if lacking <= 0:
                return
            lacking -= self._sizes.pop(path)
            path.unlink(missing_ok=True)
