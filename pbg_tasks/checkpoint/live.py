"""Mirror of the progress of one process's iteration: ``live.json``.

A gang records its progress in order to resume from it (``partial_record``). One process that trains alone does so only
when it gets a signal to end; this mirror in the same form is only for display.
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
"""Least number of seconds between two writes."""
_SHARE = 0.01  # largest share of the time that writes may take, whatever the number of buckets


class LiveMirror:
    """Writer of the mirror, for one iteration after another.

    Args:
        spec: hash of the spec that is trained.
        writer_epoch: of the writer.
        put: stores the mirror's bytes, now or soon.
        clock: monotonic seconds.
    """

    def __init__(
        self, spec: str, writer_epoch: int, put: Callable[[bytes], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec, self._writer_epoch = spec, writer_epoch
        self._put, self._clock = put, clock
        self._next = float("-inf")
        self._done: list[EdgeChunkRecord] = []

    def report(self, iteration: Iteration, lhs: int, rhs: int) -> None:
        """Report a bucket as being trained, unless the last report is recent."""
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
        """Add a bucket that is done."""
        self._done.append(piece)

    def committed(self) -> None:
        """Clear the buckets of an iteration that was committed."""
        self._done.clear()


def watch_progress(store: Store, prefix: str) -> tuple[PartialRecord, float | None] | None:
    """Return the known progress of the current iteration, and its time.

    None is returned where no progress is known.

    Args:
        store: of the checkpoint directory.
        prefix: its key.

    Returns:
        The record, and the time when it was stored, in seconds since 1970 by the store's clock (None where that is
        unknown).

    Raises:
        FormatError: HEAD.json or a record is damaged.
    """
    try:
        head = decode(Head, store.get(join(prefix, HEAD)).data, source=location(store, prefix, HEAD))
        if head.progress is not None and epoch_of(head.progress.name) == head.writer_epoch:
            info = store.head(join(prefix, head.progress.name))
            progress = read_progress(store, prefix, head.progress)
        else:  # a record of an earlier writer is the point from which this one resumed
            blob = store.get(join(prefix, FILE_NAME))
            info, progress = blob.info, decode(PartialRecord, blob.data, source=location(store, prefix, FILE_NAME))
    except NotFoundError:  # no iteration has begun, or it was committed meanwhile
        return None
    if progress.iteration.number != head.version + 1 or progress.writer_epoch != head.writer_epoch:
        return None
    return progress, info.modified if info is not None else None
