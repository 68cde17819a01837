"""How much went over the wire, and how long it took."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Traffic:
    """Counts requests to other ranks, made by any thread.

    Attributes:
        requests: answered ones.
        bytes: of arrays, both ways.
        seconds: until the answers were there, summed over the requests.
    """

    def __init__(self) -> None:
        self.requests, self.bytes, self.seconds = 0, 0, 0.0
        self._lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[list[int]]:
        """Time one request; the sizes in bytes of what it moves go into the list."""
        started, sizes = time.perf_counter(), list[int]()
        yield sizes
        with self._lock:
            self.requests += 1
            self.bytes += sum(sizes)
            self.seconds += time.perf_counter() - started
