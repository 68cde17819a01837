"""Arrivals of snapshots: whole, in their turn, and not yet announced."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import InputError
from pbg_tasks.progress import say
from pbg_tasks.storage.columnar import NoFilesError, list_keys
from pbg_tasks.tasks.nightly.chain_order import has_finished
from pbg_tasks.tasks.nightly.snapshot_completeness import lacks, snapshot_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pbg_tasks.config import Snapshots
    from pbg_tasks.config.nights import Whole
    from pbg_tasks.publish import Channel
    from pbg_tasks.tasks.nightly.watermark import Watermark


@dataclass(slots=True)
class Arrivals:
    """Watch of a location of snapshots.

    Attributes:
        location: with ``{snapshot}``, as in the graph spec.
        complete: sign that a snapshot is whole, as in ``nights.watch``.
        quiet_seconds: for how long a snapshot's files have to stay the same, for ``settled``.
        environment: settings of the location's store.
        clock: counts seconds.
        chain: the channel, where each night continues the one before: a snapshot is announced once those it waits for
            were, or have finished. Nights that cannot begin would take the places of those that can, and run out of
            patience. None: nights wait for nothing.
        ``say``: is called once with a line about the snapshot that the others wait for.
        table: a table, whose versions are the snapshots, and whole when they are listed. None: files at ``location``.
    """

    location: str
    complete: Whole
    quiet_seconds: float
    environment: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    chain: Channel | None = None
    say: Callable[[str], None] = say
    table: Snapshots | None = None
    _seen: dict[str, tuple[list[tuple[str, int, str]], float]] = field(default_factory=dict)
    _reported: str | None = None

    def look(self, watermark: Watermark | None) -> list[str]:
        """Return the whole snapshots that are to be announced, in their order.

        Without a watermark the watch has just begun. Then it is the newest snapshot alone: those before are history,
        which is for backfills.

        Raises:
            AccessError: reading is not permitted.
            StorageError: the store cannot be reached.
        """
        keys = sorted(self._keys(), key=snapshot_order)
        if watermark is None:
            newest = next((key for key in reversed(keys) if self._is_whole(key)), None)
            return [] if newest is None else [newest]
        whole = [key for key in keys if watermark.awaits(key) and self._is_whole(key)]
        if self.chain is None or not whole:
            return whole
        return list(self._in_turn(self.chain, keys[: keys.index(whole[-1]) + 1], whole, watermark))

    def passed(self, watermark: Watermark | None) -> list[str]:
        """Return the snapshots that a watch without a memory leaves out.

        Airflow keeps the memory with the asset, which is another one in a new database and once the location changes.
        In a chain, snapshots up to the newest released one had their nights, or are for a backfill. Begun again under
        changed choices, they would replace the release that readers follow. Without a watermark it is the newest
        released one alone, after which the watch begins. A release that is recorded alone does not count, as its night
        goes on.

        Raises:
            AccessError: reading is not permitted.
            StorageError: the store cannot be reached.
        """
        chain = self.chain
        if chain is None or (watermark is not None and watermark.announced):
            return []
        released = sorted({each.snapshot for each in chain.releases()}, key=snapshot_order, reverse=True)
        newest = next((key for key in released if has_finished(chain, key)), None)
        if newest is None or watermark is None:
            return [] if newest is None else [newest]
        keys = sorted(self._keys(), key=snapshot_order)
        return [key for key in keys if watermark.awaits(key) and snapshot_order(key) <= snapshot_order(newest)]

    def _in_turn(self, chain: Channel, keys: list[str], whole: list[str], watermark: Watermark) -> Iterator[str]:
        """Yield the whole snapshots whose turn it is.

        The night before such a snapshot was announced, is announced now, or has finished.
        """
        awaited: str | None = None
        for key in keys:
            if not watermark.awaits(key):
                awaited = None  # a night waits for the one before it and for no other
            elif key not in whole:
                awaited = None if has_finished(chain, key) else awaited or key
            elif awaited is None:
                yield key
            elif self._reported != awaited:
                self._reported = awaited
                self.say(f"{key} waits for {awaited}, which is not whole; `pbg skip SPEC {awaited}` goes on without it")

    def _keys(self) -> list[str]:
        if self.table is None:
            return list_keys(self.location, self.environment)
        from pbg_tasks.prepare.sources import snapshot_keys  # here, because a watch of files needs no DuckDB

        return snapshot_keys(self.table, self.environment)

    def _is_whole(self, key: str) -> bool:
        if self.table is not None:
            return True
        if self.complete == "settled":
            return self._is_settled(key)
        return lacks(self.location, key, self.complete, self.environment) is None

    def _is_settled(self, key: str) -> bool:
        """Whether a snapshot's files have stayed the same.

        Measured by this machine's clock, since the store may have another one.
        """
        try:
            files = snapshot_files(self.location, key, self.complete, self.environment)
        except NoFilesError:
            self._seen.pop(key, None)
            return False
        except InputError as error:  # a file has a name that `plan` refuses
            files = [(str(error), 0, "")]
        before, since = self._seen.get(key, (None, 0.0))
        if files != before:
            since = self.clock()
            self._seen[key] = files, since
        return self.clock() - since >= self.quiet_seconds
