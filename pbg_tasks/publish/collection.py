"""Garbage collection of a graph's store.

It marks what is reachable, and removes what has been unreachable for a grace period. A run stays or goes as a whole. It
stays when a release that stays is made of it, when any of its objects is younger than the grace (a task works on it, or
holds it), or when a run at work continues it. A run that goes loses the documents of its releases first and its data
after, so no reader ever sees a release with parts missing. What an interrupted collection left is removed by the next.
Several collections may run at once: ``holds`` decides which of them removes a run. Ages are measured by the store's
clock, since this machine's may be wrong; in a directory, which has no clock, by ``looks``.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.partial_record import unneeded_objects
from pbg_tasks.config import RunLayout
from pbg_tasks.errors import StorageError
from pbg_tasks.progress import say
from pbg_tasks.publish.gc_holds import condemn, removals
from pbg_tasks.publish.looks import Dates, Looks, silence
from pbg_tasks.publish.reachability import EXPORTS, RUNS, at_work, of_another_channel, staying_releases, stored_runs
from pbg_tasks.storage.base import DirectoryStore, ObjectInfo
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pbg_tasks.publish.gc_holds import Decision
    from pbg_tasks.publish.looks import Ages
    from pbg_tasks.publish.reachability import StoredRun
    from pbg_tasks.publish.retention import Retention
    from pbg_tasks.storage import Store

_THREADS = 8
_BATCH = 1000
"""Number of a run's objects that are deleted between two checks that this collection still has the right to remove the
run.
"""
_PROBES = ".probe/"
_MANIFEST = "manifest.json"


@dataclass(slots=True)
class Collected:
    """Report on a collection, or on a dry run.

    Attributes:
        kept: number of releases that stay.
        young: number of them whose run nothing needs, but which was used within the grace.
        releases: that go, as ``channel/number``.
        runs: that go.
        objects: number of objects deleted.
        size: of them, in bytes; in a directory, where copies share a file, that counts once.
        uploads: number of uploads that never ended and are aborted; stores do not report their bytes.
        orphans: number of files of a local store's own whose objects are gone.
        unwatched: runs in a directory that are old by their dates but stay, because no collection on this machine saw
            them a grace ago.
        silence: seconds that do not count as days of a release, since nothing was written and the clock may be ahead.
        stored: number of runs in the store when the collection began.
    """

    kept: int = 0
    young: int = 0
    releases: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    objects: int = 0
    size: int = 0
    uploads: int = 0
    orphans: int = 0
    unwatched: list[str] = field(default_factory=list)
    silence: float = 0.0
    stored: int = 0


def collect(
    store: Store,
    retention: Retention,
    *,
    grace: float,
    channel: str | Collection[str] | None = None,
    dry_run: bool = False,
    trust_clock: bool = False,
) -> Collected:
    """Remove runs and releases that nothing needs.

    Args:
        store: the graph's.
        retention: rules for the releases that stay.
        grace: seconds for which whatever was written or held stays.
        channel: the only one, or ones, whose releases and runs go; None: every channel's.
        dry_run: only report what would go.
        trust_clock: count ages by dates, also in a directory.

    Raises:
        ConfigError: the store holds the data of another program; nothing was removed.
        FormatError: a document that determines what is reachable is damaged; nothing was removed.
    """
    if isinstance(store, DirectoryStore) and not Path(store.url).exists():
        return Collected()  # its path may be mistyped, so it is not made
    now = _clock(store)
    dates = Dates(now - grace)
    no_clock = isinstance(store, DirectoryStore) and not trust_clock
    ages = Looks.of(store, grace) if no_clock else dates
    runs = stored_runs(store)
    surplus = silence(now, _dates(store, runs), grace) if no_clock and retention.days else 0.0
    only = {channel} if isinstance(channel, str) else channel
    staying = staying_releases(store, runs, retention, only=only, now=now - surplus)
    needed = {run for run, _ in staying} | (of_another_channel(store, runs, only) if only is not None else set())
    reached = needed | at_work(store, runs, ages)
    unwatched = sorted(reached - needed - at_work(store, runs, dates)) if no_clock else []
    collected = Collected(unwatched=unwatched, silence=surplus, stored=len(runs))
    sweep = _Sweep(store, ages, collected, dry_run=dry_run)
    doomed = removals(store)
    over = [each for each in doomed.values() if each.is_over(ages)]
    try:
        for run in runs.values():
            if run.run in doomed:
                sweep.rest(run, doomed[run.run])
            elif run.run not in reached:
                sweep.run(run)
            else:
                sweep.unneeded(run)
        sweep.probes()
        sweep.uploads(dates.since)
        sweep.orphans()
        if not dry_run:
            sweep.folders()
            for each in over:
                each.bury()
    finally:
        if not dry_run:
            ages.keep()
    released = {run.run: len(run.releases) for run in runs.values()}
    collected.kept = sum(released.values()) - len(collected.releases)
    collected.young = sum(released[run] for run in released.keys() - needed - set(collected.runs))
    return collected


def _clock(store: Store) -> float:
    """Return the time by the store's clock."""
    key = f"{_PROBES}{secrets.token_hex(8)}"
    try:
        store.put(key, b"")
        return store.get(key).info.modified or 0.0
    finally:
        store.delete(key)


def _dates(store: Store, runs: Mapping[str, StoredRun]) -> list[float]:
    """Return the times of all writes but those of collections."""
    of_runs = (infos for run in runs.values() for infos in (run.objects, run.exports))
    infos = chain(*of_runs, store.list("channels/"))
    return [info.modified for info in infos if info.modified is not None]


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Deletion of objects, or only their count."""

    store: Store
    ages: Ages
    collected: Collected
    dry_run: bool
    _files: set[tuple[str, str]] = field(default_factory=set)

    def run(self, run: StoredRun) -> None:
        """Remove a run, unless it is held or another process decides."""
        if self.dry_run:
            self._remove(run, None)
        elif (decision := condemn(self.store, run.run)) is not None and decision.remove(self.ages, run.exports):
            self._remove(run, decision)

    def rest(self, run: StoredRun, decision: Decision) -> None:
        """Remove the rest of a run whose removal has begun before.

        It had begun when this collection began.
        """
        if decision.state == "removing":
            self._remove(run, None if self.dry_run else decision)

    def _remove(self, run: StoredRun, decision: Decision | None) -> None:
        """Delete a run, until another collection takes over.

        Args:
            run: that goes.
            decision: tombstone of the run, which is renewed before each batch; None: only count.
        """
        documents = [self.store.head(channel.release_key(release.seq)) for channel, release in run.releases]
        steps = [[info for info in documents if info is not None]]
        for data in (run.exports, run.objects):  # objects below runs/ last: by them the next collection finds the run
            steps.append([info for info in data if info.key.endswith(_MANIFEST)])  # it makes a directory count
            steps.append([info for info in data if not info.key.endswith(_MANIFEST)])
        for infos in steps:
            for begin in range(0, len(infos), _BATCH):
                if decision is not None and not decision.move("removing"):
                    say(f"gc: run {run.run} is left to another collection, which is removing it")
                    return
                self.delete(infos[begin : begin + _BATCH])
        self.collected.releases += [f"{channel.name}/{release.seq}" for channel, release in run.releases]
        self.collected.runs.append(run.run)

    def unneeded(self, run: StoredRun) -> None:
        """Remove objects that gangs of a run that stays have given up."""
        prefix = f"{RUNS}{run.run}/{RunLayout.checkpoint}"
        inside = [info for info in run.objects if info.key.startswith(f"{prefix}/")]
        self.delete(self._old(unneeded_objects(self.store, prefix, inside)))

    def probes(self) -> None:
        """Remove the objects of probes that were killed."""
        self.delete(self._old(self.store.list(_PROBES)))

    def _old(self, infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        return (info for info in infos if self.ages.unchanged([info]))

    def delete(self, infos: Iterable[ObjectInfo]) -> None:
        """Remove objects, in any order."""
        listed = list(infos)
        if not self.dry_run:
            in_parallel(lambda info: self.store.delete(info.key), listed, _THREADS)
        self.collected.objects += len(listed)
        for info in listed:
            file = info.tag, info.key.rpartition("/")[2]  # of copies both are equal
            if file not in self._files or not isinstance(self.store, DirectoryStore):
                self.collected.size += info.size
            self._files.add(file)

    def uploads(self, since: float) -> None:
        """Abort the unfinished uploads of killed writers.

        A store may refuse to list them, or be unable to.
        """
        try:
            for prefix in (RUNS, EXPORTS):
                self.collected.uploads += self.store.abort_uploads(prefix, before=since, dry_run=self.dry_run)
        except StorageError as error:
            say(f"gc: uploads that never ended were left for the store to remove: {error}")

    def orphans(self) -> None:
        """Remove files of a directory store that killed writers left."""
        if not isinstance(self.store, DirectoryStore):
            return
        try:
            self.collected.orphans = self.store.remove_orphans(old=self.ages.unchanged, dry_run=self.dry_run)
        except StorageError as error:
            say(f"gc: files that belong to no object were left for the next collection: {error}")

    def folders(self) -> None:
        """Remove folders of a directory store that hold no object.

        A writer may be about to use a young one.
        """
        if isinstance(self.store, DirectoryStore):
            for prefix in (RUNS, EXPORTS):
                with suppress(OSError):  # another process has changed something there
                    self._remove_bare(Path(self.store.url, prefix))

    def _remove_bare(self, root: Path) -> None:
        full, bare = set[str](), list[tuple[str, int]]()
        for folder, names, files in os.walk(root, topdown=False):
            if files or any(str(Path(folder, name)) in full for name in names):
                full.add(folder)
            else:
                bare.append((folder, Path(folder).stat().st_mtime_ns))
        for folder, changed in bare:
            info = ObjectInfo(folder, 0, f"{changed:x}", modified=changed / 1e9)
            if Path(folder) != root and self.ages.unchanged([info]):
                with suppress(OSError):
                    Path(folder).rmdir()
