"""Writers that race on a real S3 server through breaking connections.

``python -m tests.storm``

Each writer is a process with a fault proxy of its own. They read, create and swap one object after another; every
second object is a stamped document with one of two contents, so that the same content returns again and again. The
observations of all writers, with their moments, must be explained by one order of all operations, and no write that was
answered may be gone.

The faults of a writer are those of its seed, request by request. Which request meets which state of the object is up to
the operating system, so a seed repeats the faults and not the history.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING

from examples.stack.object_store import ObjectStore
from pbg_tasks.checkpoint.manifest import encode_unique
from pbg_tasks.errors import NotFoundError
from pbg_tasks.progress import Progress
from pbg_tasks.publish import Current
from pbg_tasks.storage import open_store
from tests.storage.fault_proxy import Fault, FaultProxy
from tests.storage.histories import Read, Write, act, faults, lost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

    from pbg_tasks.storage import Store

    History = list[Read | Write]

OF_ONE_OBJECT = 200
"""Operations on one object, by all writers; the check compares all their orders."""
SHARE = 0.3
"""Share of requests that meet a fault."""
HASTE = 20
"""Factor by which the SDK and the store wait less before they ask again."""
DEADLINE_SECONDS = 300.0
"""Seconds without an operation after which a writer counts as hanging."""


class Storm:
    """The faults of one writer's requests.

    Each is chosen anew or continues a burst.

    Args:
        seed: of the choice.

    Attributes:
        seen: number of times each kind of fault was chosen.
    """

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._burst: list[str] = []
        self.seen: Counter[str] = Counter()

    def __call__(self, method: str, _: str) -> Fault | None:
        """Return the fault of a request.

        The proxy calls it for one request at a time.
        """
        rng = self._rng
        if not self._burst and rng.random() < SHARE:
            self._burst = [rng.choice(KINDS)] * rng.choice((1, 1, 1, 1, 3, 4))  # the SDK tries three times in all
        if not self._burst:
            return None
        kind = self._burst.pop()
        self.seen[kind] += 1
        return {
            "reset before": Fault(method, forward=False, reset=True),
            "closed before": Fault(method, forward=False),
            "reset after": Fault(method, reset=True),
            "closed after": Fault(method),
            "503 before": Fault(method, forward=False, status=503),
            "500 after": Fault(method, status=500),
            "503 after": Fault(method, status=503),
            "slow": Fault(method, seconds=rng.uniform(0.0, 0.05)),
            "repeated": Fault(method, again=True),
            "cut in the head": Fault(method, cut=rng.randrange(1, 250)),
            "cut anywhere": Fault(method, cut=rng.randrange(1, 600)),
            "cut in the body": Fault(method, truncate=rng.randrange(20)),
        }[kind]


KINDS = (
    *("reset before", "closed before", "reset after", "closed after", "503 before", "500 after", "503 after"),
    *("slow", "repeated", "cut in the head", "cut anywhere", "cut in the body"),
)


def value_of(stamped: bool, writer: int, count: int) -> str:  # noqa: FBT001 - one of two kinds of object
    """Return the value of a write: unique, or one of two documents.

    Equal documents differ by their nonces.
    """
    if not stamped:
        return f"{writer}.{count}"
    seq = 1 + count % 2
    return encode_unique(Current(seq=seq, release_sha256=f"{seq}" * 64, moved_by="rollback", highest=2)).decode()


def shares(operations: int, parts: int) -> list[int]:
    """Divide operations into parts that differ by one at most."""
    return [operations // parts + (number < operations % parts) for number in range(parts)]


def write(
    number: int, url: str, rounds: Sequence[int], seed: int, start: Barrier, out: Queue[tuple[int, object]]
) -> None:
    """Act as one writer.

    It puts ``(object, operation)`` for each operation, None for a read without an answer.

    Args:
        number: of the writer.
        url: of the store.
        rounds: operations of this writer on each object.
        seed: of the storm.
        start: where the writers wait for each other before each object.
        out: for the operations; at the end ``(-1, faults by kind)``.
    """
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(seconds / HASTE)
    logging.getLogger("urllib3.connection").setLevel(logging.CRITICAL)
    storm = Storm(f"{seed} faults {number}")
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"], storm) as proxy:
        store = open_store(url, environment={**os.environ, "AWS_ENDPOINT_URL": proxy.url})
        for which, operations in enumerate(rounds):
            start.wait(DEADLINE_SECONDS)
            rng = random.Random(f"{seed} {which} {number}")

            def value(count: int, which: int = which) -> str:
                return value_of(which % 2 == 1, number, count)

            for operation in act(store, f"{which}/HEAD.json", operations, rng, value):
                out.put((which, operation))
    out.put((-1, storm.seen))


def last_read(store: Store, key: str) -> Read:
    """Read the object at the end, without a fault."""
    began = time.perf_counter()
    try:
        value = store.get(key).data.decode()
    except NotFoundError:
        value = None
    return Read(began, time.perf_counter(), value)


def storm(url: str, operations: int, writers: int, seed: int) -> tuple[list[History], Counter[str]]:
    """Let writers race on objects of a store.

    Returns the history of each object, and the faults by kind.

    Raises:
        RuntimeError: a writer ended with an error of its own, or hangs.
    """
    of_objects = shares(operations, max(2, operations // OF_ONE_OBJECT))
    of_writers = list(zip(*(shares(count, writers) for count in of_objects), strict=True))
    context = multiprocessing.get_context("spawn")
    out, start = context.Queue(), context.Barrier(writers)
    processes = [
        context.Process(target=write, args=(number, url, of_writers[number], seed, start, out), daemon=True)
        for number in range(writers)
    ]
    histories: list[History] = [[] for _ in of_objects]
    happened, running = Counter[str](), writers
    for process in processes:
        process.start()
    try:
        with Progress("storm", operations, "operations", interval=2.0) as progress:
            heard = time.monotonic()
            while running:
                try:
                    which, operation = out.get(timeout=1.0)
                except Empty:
                    if any(process.exitcode for process in processes):
                        raise RuntimeError("a writer ended with an error, see above") from None
                    if time.monotonic() - heard > DEADLINE_SECONDS:
                        raise RuntimeError(f"no writer has done anything for {DEADLINE_SECONDS:g} s") from None
                    continue
                heard = time.monotonic()
                if which < 0:
                    happened, running = happened + operation, running - 1
                    continue
                progress.advance(1)
                if operation is not None:
                    histories[which].append(operation)
    finally:
        for process in processes:
            process.join(timeout=5.0 if not running else 0.0)
            process.kill()
    store = open_store(url)
    for which, history in enumerate(histories):
        history.append(last_read(store, f"{which}/HEAD.json"))
    return histories, happened


def verdict(histories: Sequence[History], operations: int) -> tuple[str, bool]:
    """Return the verdict, and whether it is good.

    Lines about violations are printed before.
    """
    wrong = [f"object {which}: {fault}" for which, history in enumerate(histories) for fault in faults(history)]
    gone = [f"object {which}: {value} was lost" for which, history in enumerate(histories) for value in lost(history)]
    refused = sum(isinstance(each, Write) and each.outcome == "refused" for history in histories for each in history)
    sys.stdout.writelines(f"{line}\n" for line in wrong + gone)
    line = f"{operations} operations: {len(wrong)} violations, {len(gone)} lost, {refused} refused"
    return line, not wrong and not gone


def main() -> int:
    """Run the storm; return 1 after any violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.operations < 1 or asked.writers < 1:
        parser.error("--operations and --writers are at least 1")
    with tempfile.TemporaryDirectory() as directory, ObjectStore(Path(directory)) as server:
        os.environ |= server.environment() | {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        try:
            histories, happened = storm(server.create_bucket("storm"), asked.operations, asked.writers, asked.seed)
        except RuntimeError as error:
            sys.stderr.write(f"storm: {error}\n")
            return 1
    outcomes = Counter(each.outcome for history in histories for each in history if isinstance(each, Write))
    unread = asked.operations + len(histories) - sum(map(len, histories))
    sys.stdout.write(f"faults: {', '.join(f'{count} {kind}' for kind, count in sorted(happened.items()))}\n")
    sys.stdout.write(f"objects: {len(histories)}; overtaken: {outcomes['overtaken']}; without an answer: ")
    sys.stdout.write(f"{outcomes['unknown']} writes, {unread} reads\n")
    line, right = verdict(histories, asked.operations)
    sys.stdout.write(f"{line}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
