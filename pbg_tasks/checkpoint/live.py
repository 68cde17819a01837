"""``live.json``: how far an iteration of one process is, for those who watch it.

A gang records its progress in order to go on from it (``progress``). One process that trains alone does so only when it
is told to end; this mirror in the same form is only looked at.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import Head, decode, encode
from pbg_tasks.checkpoint.partial_record import EdgeChunkRecord, LeaseRecord, PartialRecord, epoch_of
from pbg_tasks.checkpoint.reader import HEAD, location
from pbg_tasks.checkpoint.segments import read_progress
from pbg_tasks.errors import NotFoundError
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.checkpoint.manifest import Iteration
    from pbg_tasks.storage import Store

FILE_NAME = "live.json"
INTERVAL_SECONDS = 2.0
"""At least so long lies between two writes."""
_SHARE = 0.01  # of the time may be spent on telling, however many buckets there are


class LiveMirror:
    """Tells of the buckets of one iteration after another.

    Args:
        spec: hash of what is trained.
        writer_epoch: of the writer.
        put: stores the mirror's bytes, now or soon.
        clock: monotonic seconds.
    """

    def __init__(
        self, spec: str, writer_epoch: int, put: Callable[[bytes], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec, self._writer_epoch, self._put, self._clock = spec, writer_epoch, put, clock
        self._next = float("-inf")
        self._done: list[EdgeChunkRecord] = []

    def tell(self, iteration: Iteration, lhs: int, rhs: int) -> None:
        """Say that a bucket is being trained, unless something was said just before."""
        began = self._clock()
        if began < self._next:
            return
        progress = PartialRecord(
            spec=self._spec,
            writer_epoch=self._writer_epoch,
            number=0,
            iteration=iteration,
            lease=0,
            done=tuple(self._done),
            active=(LeaseRecord(lhs=lhs, rhs=rhs, rank=0, lease=0),),
        )
        self._put(encode(progress))
        ended = self._clock()
        self._next = ended + max(INTERVAL_SECONDS, (ended - began) / _SHARE)

    def done(self, piece: EdgeChunkRecord) -> None:
        """Take note of a bucket that is done."""
        self._done.append(piece)

    def committed(self) -> None:
        """Forget an iteration that is over."""
        self._done.clear()


def watch_progress(store: Store, prefix: str) -> tuple[PartialRecord, float | None] | None:
    """Return what is known of the iteration under way, and when it was said; None where nothing is.

    Args:
        store: of the checkpoint directory.
        prefix: its key.

    Raises:
        FormatError: HEAD.json or a record is damaged.
    """
    try:
        head = decode(Head, store.get(join(prefix, HEAD)).data, source=location(store, prefix, HEAD))
        if head.progress is not None and epoch_of(head.progress.name) == head.writer_epoch:
            said = store.head(join(prefix, head.progress.name))
            progress = read_progress(store, prefix, head.progress)
        else:  # a record of an earlier writer is what this one began with
            blob = store.get(join(prefix, FILE_NAME))
            said, progress = blob.info, decode(PartialRecord, blob.data, source=location(store, prefix, FILE_NAME))
    except NotFoundError:  # nothing is trained yet, or the iteration was committed meanwhile
        return None
    if progress.iteration.number != head.version + 1 or progress.writer_epoch != head.writer_epoch:
        return None
    return progress, said.modified if said is not None else None
