"""Histories of one object: the timed operations of threads, and their order.

A history is right where one order of the operations explains what all threads saw.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from threading import Barrier
from typing import TYPE_CHECKING, Literal

from pbg_tasks.errors import ConflictError, NotFoundError, OvertakenError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pbg_tasks.storage import ObjectInfo, Store


@dataclass(frozen=True, slots=True)
class Read:
    """Read that was answered.

    Attributes:
        began: moment of the call.
        ended: moment of the answer.
        value: found; None where there was no object.
    """

    began: float
    ended: float
    value: str | None


@dataclass(frozen=True, slots=True)
class Write:
    """Write that replaces a value which its thread has seen before.

    Attributes:
        began: moment of the call.
        ended: moment of the answer.
        expected: the value it replaces; None where it creates the object.
        value: written by this write alone.
        outcome: of the answer; ``overtaken``: another's value was there, and it may have taken place before;
            ``unknown``: none came, and it may take place at any time after.
    """

    began: float
    ended: float
    expected: str | None
    value: str
    outcome: Literal["done", "refused", "overtaken", "unknown"] = "done"


def race(stores: Sequence[Store], key: str, operations: int, *, seed: int = 0) -> list[Read | Write]:
    """Run random operations on one object, a thread for each store.

    The operations are reads, creations and replacements. Returns all of them with their moments.
    """
    start = Barrier(len(stores))

    def run(number: int) -> list[Read | Write]:
        start.wait()
        rng = random.Random(f"{seed} {number}")
        return list(act(stores[number], key, operations // len(stores), rng, lambda count: f"{number}.{count}"))

    with ThreadPoolExecutor(len(stores)) as pool:
        return [operation for done in pool.map(run, range(len(stores))) for operation in done]


def act(
    store: Store, key: str, operations: int, rng: random.Random, value: Callable[[int], str]
) -> Iterator[Read | Write | None]:
    """Read, create and replace one object at random.

    Yields each operation, None for a read without an answer.

    Args:
        store: that holds the object.
        key: of the object.
        operations: number of them.
        rng: chooses them.
        value: gives the value that a write of this number writes; no other write, of any thread, writes the same.
    """
    known: tuple[str | None, ObjectInfo | None] = None, None
    for count in range(operations):
        if rng.random() < 0.5:
            try:
                operation, known = _read(store, key)
            except StorageError:
                operation = None
        else:
            expected = known if rng.random() < 0.9 else (None, None)
            operation, made = _write(store, key, *expected, value=value(count))
            known = known if made is None else (operation.value, made)
        yield operation


def _read(store: Store, key: str) -> tuple[Read, tuple[str | None, ObjectInfo | None]]:
    began = time.perf_counter()
    try:
        blob = store.get(key)
    except NotFoundError:
        return Read(began, time.perf_counter(), None), (None, None)
    ended, value = time.perf_counter(), blob.data.decode()
    return Read(began, ended, value), (value, blob.info)


def lost(history: Sequence[Read | Write]) -> list[str]:
    """Return the values that vanished without a write that replaced them.

    Their writes were answered as successful, and another write that did not expect them took their place. The last read
    of the history sees the value at the end.
    """
    writes = {each.value: each for each in history if isinstance(each, Write) and each.outcome != "refused"}
    reads = [each for each in history if isinstance(each, Read)]
    value, kept = max(reads, key=lambda read: read.ended).value if reads else None, set[str]()
    while value in writes and value not in kept:
        kept.add(value)
        value = writes[value].expected
    return [write.value for write in writes.values() if write.outcome == "done" and write.value not in kept]


def _write(
    store: Store, key: str, expected: str | None, info: ObjectInfo | None, *, value: str
) -> tuple[Write, ObjectInfo | None]:
    data, made = value.encode(), None
    began = time.perf_counter()
    try:
        made = store.put_new(key, data) if info is None else store.swap(key, data, expected=info)
        outcome = "done"
    except OvertakenError:
        outcome = "overtaken"
    except ConflictError:
        outcome = "refused"
    except StorageError:
        outcome = "unknown"
    return Write(began, time.perf_counter(), expected, value, outcome), made


def faults(history: Sequence[Read | Write]) -> list[str]:
    """Return why no order explains a history; empty if one does.

    Each operation takes place at some moment between its call and its answer.

    Every value is written once and names the value it replaced, so the writes that took place have one order. The
    moments of reads and refusals bound the moment of each write from both sides; the rest is comparing.
    """
    reads = [each for each in history if isinstance(each, Read)]
    writes = [each for each in history if isinstance(each, Write)]
    done = [each for each in writes if each.outcome == "done"]
    refused = [each for each in writes if each.outcome == "refused"]
    overtaken = [each for each in writes if each.outcome == "overtaken"]
    unknown = [each for each in writes if each.outcome == "unknown"] + overtaken
    seen = {each.value for each in reads} | {each.expected for each in done}
    took_place = done + [each for each in unknown if each.value in seen]
    # One of the writes whose value no thread saw may have taken place at the end.
    ends = [[], *([each] for each in unknown if each.value not in seen)]
    return min((_faults(reads, [*took_place, *end], refused, overtaken) for end in ends), key=len)


def _faults(reads: list[Read], writes: list[Write], refused: list[Write], overtaken: list[Write]) -> list[str]:
    order, wrong = _in_order(writes)
    wrong += [f"{read.value} was read, and was never there" for read in reads if read.value not in order]
    if wrong:
        return wrong
    after = dict(pairwise(order))
    # At the answer another value was there: one that replaced its own, or the value that it was to replace.
    replaced = [(each, each.value if each.value in order else each.expected) for each in overtaken]
    replaced += [(each, each.expected) for each in refused]
    not_before = [
        *((write.value, write.began) for write in writes),
        *((after[read.value], read.began) for read in reads if read.value in after),
    ]
    by = [
        *((write.value, write.ended) for write in writes if write.outcome == "done"),
        *((read.value, read.ended) for read in reads),
        *((after[value], write.ended) for write, value in replaced if value in after),
    ]
    wrong = [
        f"{each.value} was {each.outcome}, although {value} was there" for each, value in replaced if value == order[-1]
    ]
    earliest = float("-inf")
    for value in order[1:]:
        earliest = max([earliest, *(moment for which, moment in not_before if which == value)])
        latest = min((moment for which, moment in by if which == value), default=float("inf"))
        if earliest > latest:
            wrong.append(f"{value} was there by {latest}, and not before {earliest}")
    return wrong


def _in_order(writes: list[Write]) -> tuple[list[str | None], list[str]]:
    """Return the values in their order, and the faults found in it."""
    after: dict[str | None, str] = {}
    wrong = [
        f"{value} was written twice" for value, times in Counter(each.value for each in writes).items() if times > 1
    ]
    if wrong:
        return [None], wrong
    for write in writes:
        other = after.setdefault(write.expected, write.value)
        if other != write.value:
            wrong.append(f"{other} and {write.value} both replaced {write.expected}")
    order: list[str | None] = [None]
    while order[-1] in after:
        order.append(after[order[-1]])
    lost = [write for write in writes if write.value not in order]
    return order, wrong + [f"{write.value} replaced {write.expected}, which was never there" for write in lost]
