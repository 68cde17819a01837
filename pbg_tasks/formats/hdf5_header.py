"""HDF5 files that lie elsewhere, told by a few of their parts: what a file holds takes kilobytes, whatever its size.

Nothing is fetched while HDF5 reads: h5py holds one lock for all threads meanwhile, so that looks at many files would
wait for the network one after the other. A part that is not here is noted instead, fetched, and the look begins anew.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TypeVar

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

PART = 1 << 16
"""Bytes of a part; the first one holds all that is asked of a file that was written by this package."""
_MOST_PARTS = 16

Found = TypeVar("Found")


class Hdf5Header(io.RawIOBase):
    """A file of which some parts are here; reading another fails.

    Args:
        name: what messages call it.
        size: bytes of the whole file.

    Attributes:
        size: bytes of the whole file.
        parts: that are here, by number.
        missing: numbers of those that were asked for in vain.
    """

    def __init__(self, name: str, size: int) -> None:
        super().__init__()
        self._name, self.size, self._position = name, size, 0
        self.parts: dict[int, bytes] = {}
        self.missing: set[int] = set()

    def __repr__(self) -> str:
        return self._name  # by which h5py calls what it reads from

    __str__ = __repr__

    def readable(self) -> bool:
        """As of any file."""
        return True

    def seekable(self) -> bool:
        """As of any file."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of any file."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - typeshed's WriteableBuffer
        """As of any file.

        Raises:
            OSError: a part is missing.
        """
        view = memoryview(buffer)
        start, stop = self._position, min(self._position + len(view), self.size)
        if start >= stop:
            return 0
        first, last = start // PART, (stop - 1) // PART
        missing = [number for number in range(first, last + 1) if number not in self.parts]
        if missing:
            self.miss(missing)
            raise OSError(f"bytes {start} to {stop} are not here")
        here = b"".join(self.parts[number] for number in range(first, last + 1))
        view[: stop - start] = here[start - first * PART : stop - first * PART]
        self._position = stop
        return stop - start

    def miss(self, numbers: Sequence[int]) -> None:
        """Note parts that were asked for in vain; of many, the first."""
        last = (self.size - 1) // PART
        self.missing.update(number for number in numbers[:_MOST_PARTS] if type(number) is int and 0 <= number <= last)


def read_header(
    name: str, size: int, fetch: Callable[[int, int], bytes], look: Callable[[Hdf5Header], Found]
) -> Found | None:
    """Return what ``look`` finds in a file; None where that takes more than a few parts of it.

    Args:
        name: what messages call the file.
        size: bytes of it.
        fetch: gives the bytes from one place to another.
        look: opens it as any other file.

    Raises:
        FormatError: the file is damaged.
    """
    file = Hdf5Header(name, size)
    wanted = {0}
    while len(file.parts) + len(wanted) <= _MOST_PARTS:
        for number in sorted(wanted):
            file.parts[number] = fetch(number * PART, min((number + 1) * PART, size))
        file.missing.clear()
        file.seek(0)
        try:
            found = look(file)
        except FormatError:
            if not file.missing:
                raise
        else:
            if not file.missing:  # or what was not here was taken for what there is not
                return found
        wanted = set(file.missing)
    return None
