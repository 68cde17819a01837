"""Work on many items by a few threads, until the first failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Return ``work(item)`` of each item, in the items' order.

    The first failure (in that order) is raised once running work has ended; work that had not begun never does. With
    one thread, or one item at most, everything happens in the caller's thread.
    """
    items = list(items)
    if threads == 1 or len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def work_off(items: Iterator[Item], workers: int, work: Callable[[int, Item], None], *, delay: float = 0.0) -> None:
    """Call ``work(worker, item)`` once for every item, by free workers.

    With one worker everything happens in the caller's thread, in order. Otherwise the first error of any worker ends
    all of them.

    Args:
        items: taken by one worker at a time.
        workers: their number; worker 0 is the caller's thread.
        work: must allow calls by several threads at once, with different numbers.
        delay: seconds by which every worker but the first starts later (PBG's ``hogwild_delay``).
    """
    if workers == 1:
        for item in items:
            work(0, item)
        return
    _Pool(items, work, delay).run(workers)


class _Pool:
    def __init__(self, items: Iterator[Item], work: Callable[[int, Item], None], delay: float) -> None:
        self._items, self._work = items, work
        self._delay = delay
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
