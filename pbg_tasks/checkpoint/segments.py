"""Segments: stored lists of the pieces that an iteration has done.

A record names the full segments, and holds the other pieces itself. A record is made after every bucket or so. If each
listed all pieces, an iteration of n buckets would write n * n / 2 of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import NamedRecord, decode, encode, sha256
from pbg_tasks.checkpoint.partial_record import PARTIAL, EdgeChunkRecord, PartialRecord
from pbg_tasks.checkpoint.reader import location
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import FormatError
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.checkpoint.manifest import Iteration
    from pbg_tasks.storage import Store

PIECES = 1000
"""Number of pieces in a full segment, which takes some 200 kB."""


class Segment(Frozen):
    """List of pieces that are trained to their end and stored."""

    format: Literal[1] = 1
    done: tuple[EdgeChunkRecord, ...]


class Segments:
    """Segments of a writer, for the current iteration.

    The next iteration begins without any.

    Args:
        put: stores an object below the directory, by its name.
        writer_epoch: of the writer, so that no other writer uses its names.
    """

    def __init__(self, put: Callable[[str, bytes], object], writer_epoch: int) -> None:
        self._put, self._writer_epoch = put, writer_epoch
        self._iteration: Iteration | None = None
        self._sealed: list[NamedRecord] = []
        self._buckets: set[tuple[int, int]] = set()

    def seal(self, progress: PartialRecord) -> PartialRecord:
        """Store segments that have become full; return the record that names them.

        Raises:
            ConflictError: a newer writer has taken over.
        """
        if progress.iteration != self._iteration:
            self._iteration, self._sealed = progress.iteration, []
            self._buckets = set()
        rest = [piece for piece in progress.done if (piece.lhs, piece.rhs) not in self._buckets]
        while len(rest) >= PIECES:
            self._store(Segment(done=tuple(rest[:PIECES])), progress.iteration.number)
            rest = rest[PIECES:]
        return progress.model_copy(update={"done": tuple(rest), "sealed": tuple(self._sealed)})

    def _store(self, segment: Segment, version: int) -> None:
        name, data = f"{PARTIAL}/e{self._writer_epoch}/pieces.v{version}.{len(self._sealed)}.json", encode(segment)
        self._put(name, data)
        self._sealed.append(NamedRecord(name=name, sha256=sha256(data)))
        self._buckets.update((piece.lhs, piece.rhs) for piece in segment.done)


def read_progress(store: Store, prefix: str, named: NamedRecord) -> PartialRecord:
    """Read a record, with the pieces of its segments.

    Args:
        store: of the checkpoint directory.
        prefix: its key.
        named: name and hash of the record, from HEAD.json.

    Raises:
        NotFoundError: a record, or a segment, is missing: a later one has replaced it, or it is lost.
        FormatError: it is damaged.
    """
    progress = decode(PartialRecord, _verified(store, prefix, named), source=location(store, prefix, named.name))
    done = [
        piece
        for segment in progress.sealed
        for piece in decode(
            Segment, _verified(store, prefix, segment), source=location(store, prefix, segment.name)
        ).done
    ]
    return progress.model_copy(update={"done": (*done, *progress.done)})


def _verified(store: Store, prefix: str, named: NamedRecord) -> bytes:
    data = store.get(join(prefix, named.name)).data
    if sha256(data) != named.sha256:
        source = location(store, prefix, named.name)
        raise FormatError(f"{source}: not the one that was recorded; it was changed after it was written")
    return data
