"""Garbage collection of a graph's store: mark what is reachable, sweep what nothing has reached for a grace.

A run stays whole or goes whole. It stays when a release that stays is made of it, when anything of it is younger than
the grace (it is at work, or was held), or when a run at work continues it. A run that goes loses the documents of its
releases first and its data after, so nobody ever sees a release with parts missing. What an interrupted collection left
is removed by the next. Ages are told by the store's clock: this machine's may be wrong.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.leftovers import unnamed_leftovers
from pbg_tasks.config import RunLayout
from pbg_tasks.errors import StorageError
from pbg_tasks.progress import say
from pbg_tasks.publish.holds import TOMBSTONES, condemn, decide, read_tombstone
from pbg_tasks.publish.reachability import EXPORTS, RUNS, at_work, of_another_channel, staying_releases, stored_runs
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pbg_tasks.publish.reachability import StoredRun
    from pbg_tasks.publish.retention import Retention
    from pbg_tasks.storage import ObjectInfo, Store

_THREADS = 8
_PROBES = ".probe/"
_MANIFEST = "manifest.json"


@dataclass(slots=True)
class Collected:
    """What a collection did, or would do.

    Attributes:
        kept: releases that stay.
        releases: that go, as ``channel/number``.
        runs: that go.
        objects: deleted.
        size: of them, in bytes.
        uploads: that never ended and are given up; how many bytes they hold is not told.
    """

    kept: int = 0
    releases: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    objects: int = 0
    size: int = 0
    uploads: int = 0


def collect(
    store: Store, retention: Retention, *, grace: float, channel: str | None = None, dry_run: bool = False
) -> Collected:
    """Remove runs and releases that nothing needs.

    Args:
        store: the graph's.
        retention: which releases stay.
        grace: seconds for which whatever was written or held stays.
        channel: the only one whose releases and runs go; None: every channel's.
        dry_run: only tell what would go.

    Raises:
        ConfigError: what the store holds is another program's; nothing was removed.
        FormatError: a document that says what is reachable is damaged; nothing was removed.
    """
    now = _clock(store)
    since = now - grace
    runs = stored_runs(store)
    staying = staying_releases(store, runs, retention, channel=channel, now=now)
    reached = {run for run, _ in staying} | at_work(store, runs, since=since)
    if channel is not None:
        reached |= of_another_channel(store, runs, channel)
    sweep = _Sweep(store, Collected(kept=len(staying)), dry_run=dry_run)
    doomed = _removing(store)
    for run in runs.values():
        if run.run in doomed or run.run not in reached:
            sweep.run(run, since)
        else:
            sweep.leftovers(run, since)
    sweep.delete(_old(store.list(_PROBES), since))
    sweep.uploads(since)
    if not dry_run:
        _bury(store, doomed, since)
    return sweep.collected


def _clock(store: Store) -> float:
    """Return the time by the store's clock."""
    key = f"{_PROBES}{secrets.token_hex(8)}"
    try:
        store.put(key, b"")
        return store.get(key).info.modified or 0.0
    finally:
        store.delete(key)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Deletes and counts, or only counts."""

    store: Store
    collected: Collected
    dry_run: bool

    def run(self, run: StoredRun, since: float) -> None:
        """Remove a run, unless someone holds it."""
        if not self.dry_run:
            condemn(self.store, run.run)
            if not decide(self.store, run.run, since=since):
                return
        documents = [self.store.head(channel.release_key(release.seq)) for channel, release in run.releases]
        self.delete(info for info in documents if info is not None)
        for infos in (run.exports, run.objects):  # without its manifest, a directory is none
            self.delete(info for info in infos if info.key.endswith(_MANIFEST))
            self.delete(info for info in infos if not info.key.endswith(_MANIFEST))
        self.collected.releases += [f"{channel.name}/{release.seq}" for channel, release in run.releases]
        self.collected.runs.append(run.run)

    def leftovers(self, run: StoredRun, since: float) -> None:
        """Remove what gangs of a run that stays have stored and given up."""
        prefix = f"{RUNS}{run.run}/{RunLayout.checkpoint}"
        inside = [info for info in _old(run.objects, since) if info.key.startswith(f"{prefix}/")]
        self.delete(unnamed_leftovers(self.store, prefix, inside))

    def delete(self, infos: Iterable[ObjectInfo]) -> None:
        """Remove objects, in any order."""
        listed = list(infos)
        if not self.dry_run:
            in_parallel(lambda info: self.store.delete(info.key), listed, _THREADS)
        self.collected.objects += len(listed)
        self.collected.size += sum(info.size for info in listed)

    def uploads(self, since: float) -> None:
        """Give up what killed writers have uploaded in part; a store may refuse to tell of it, or not know how to."""
        try:
            for prefix in (RUNS, EXPORTS):
                self.collected.uploads += self.store.abort_uploads(prefix, before=since, dry_run=self.dry_run)
        except StorageError as error:
            say(f"gc: uploads that never ended were left for the store to remove: {error}")


def _old(infos: Iterable[ObjectInfo], since: float) -> Iterator[ObjectInfo]:
    return (info for info in infos if info.modified is not None and info.modified < since)


def _removing(store: Store) -> dict[str, ObjectInfo]:
    """Return the runs that an earlier collection decided to remove, with their tombstones."""
    listed = {info.key.removeprefix(TOMBSTONES).removesuffix(".json"): info for info in store.list(TOMBSTONES)}
    found = {run: read_tombstone(store, run) for run in listed}
    return {run: listed[run] for run, each in found.items() if each is not None and each[0].state == "removing"}


def _bury(store: Store, doomed: dict[str, ObjectInfo], since: float) -> None:
    """Remove the tombstones of earlier collections: nothing of those runs is left, and nobody can be at them still."""
    for info in _old(doomed.values(), since):
        store.delete(info.key)
