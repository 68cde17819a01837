"""HOGWILD (Niu et al. 2011): several workers step through one bucket at once and change its tables without locks.

Workers are threads of one process: torch leaves the interpreter's lock while it computes, and threads need no shared
memory segments, no copies of the edges and no start-up (PBG starts a pool of processes for all three).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Item = TypeVar("Item")


def forked(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """Return generators with streams of their own, which follow from where ``generator`` stands."""
    if not count:
        return []  # and ``generator`` stays where it is
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def work_off(items: Iterator[Item], workers: int, work: Callable[[int, Item], None], *, delay: float = 0.0) -> None:
    """Do ``work(worker, item)`` for every item, each once, by the worker that is free.

    With one worker everything happens here, in order. Otherwise the first error of any worker ends all of them.

    Args:
        items: taken by one worker at a time.
        workers: how many; worker 0 is this thread.
        work: must stand being called at once by several threads, with different numbers.
        delay: seconds by which every worker but the first starts later (PBG's ``hogwild_delay``).
    """
    if workers == 1:
        for item in items:
            work(0, item)
        return
    _Pool(items, work, delay).run(workers)


class _Pool:
    def __init__(self, items: Iterator[Item], work: Callable[[int, Item], None], delay: float) -> None:
        self._items, self._work, self._delay = items, work, delay
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, workers: int) -> None:
        threads = [threading.Thread(target=self._late, args=(number,), daemon=True) for number in range(1, workers)]
        for thread in threads:
            thread.start()
        try:
            self._keep_working(0)
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _late(self, worker: int) -> None:
        if not self._over.wait(self._delay):
            self._keep_working(worker)

    def _keep_working(self, worker: int) -> None:
        while not self._over.is_set():
            try:
                with self._lock:
                    item = next(self._items, None)
                if item is None:
                    return
                self._work(worker, item)
            except BaseException as error:  # noqa: BLE001 - raised again in the first worker's thread
                self._errors.append(error)
                self._over.set()
