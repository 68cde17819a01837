"""Headers of HDF5 files in a store, read from few parts.

The description of a file's content takes kilobytes, whatever the file's size. Parts are not fetched while HDF5 reads:
h5py holds one lock for all threads meanwhile, so that readers of many files would wait for the network one after the
other. A missing part is recorded instead and fetched, and the reading begins anew.
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
"""Bytes of a part. The first one holds all that is read of a file that this package wrote."""
_MOST_PARTS = 16

Found = TypeVar("Found")


class Hdf5Header(io.RawIOBase):
    """File of which some parts are here; reading any other part fails.

    Args:
        name: of the file in messages.
        size: bytes of the whole file.

    Attributes:
        size: bytes of the whole file.
        parts: those that are here, by number.
        missing: numbers of the parts that were requested and are not here.
    """

    def __init__(self, name: str, size: int) -> None:
        super().__init__()
        self._name, self.size = name, size
        self._position = 0
        self.parts: dict[int, bytes] = {}
        self.missing: set[int] = set()

    def __repr__(self) -> str:
        return self._name  # h5py names a file so in its messages

    __str__ = __repr__

    def readable(self) -> bool:
        """Return True: any part may be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the position can be set."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position, as in any file."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - typeshed's WriteableBuffer
        """Read bytes from the position on, as in any file.

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
        """Record requested parts that are not here; of many, the first."""
        last = (self.size - 1) // PART
        self.missing.update(number for number in numbers[:_MOST_PARTS] if type(number) is int and 0 <= number <= last)


def read_header(
    name: str, size: int, fetch: Callable[[int, int], bytes], look: Callable[[Hdf5Header], Found]
) -> Found | None:
    """Return the result of ``look`` for a file.

    None is returned where that takes more than a few parts of the file.

    Args:
        name: of the file in messages.
        size: bytes of it.
        fetch: returns the bytes from one position to another.
        look: reads the file.

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
            if not file.missing:  # else a missing part may have been taken for missing content
                return found
        wanted = set(file.missing)
    return None
