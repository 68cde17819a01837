"""Amount and duration of transfers between ranks."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Traffic:
    """Counter of requests to other ranks, made by any thread.

    Attributes:
        requests: number of answered requests.
        bytes: bytes of arrays, both ways.
        seconds: time until the answers had arrived, summed over the requests.
    """

    def __init__(self) -> None:
        self.requests, self.bytes = 0, 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[list[int]]:
        """Time one request.

        The caller appends the sizes in bytes of the transferred arrays to the list.
        """
        started, sizes = time.perf_counter(), list[int]()
        yield sizes
        with self._lock:
            self.requests += 1
            self.bytes += sum(sizes)
            self.seconds += time.perf_counter() - started
