"""Contents of a graph's store by run, and the reachable runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import Stored
from pbg_tasks.errors import ConfigError, FormatError, NotFoundError
from pbg_tasks.publish.channel import Channel, all_channel_names
from pbg_tasks.publish.gc_holds import TOMBSTONES, hold_key, run_with, tombstone_key
from pbg_tasks.publish.retention import Retention, kept, pins
from pbg_tasks.publish.service_pins import service_pins

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pbg_tasks.publish.looks import Ages
    from pbg_tasks.publish.release import Release
    from pbg_tasks.storage import ObjectInfo, Store

RUNS, EXPORTS = "runs/", "exports/"
_EXPORT_OF_RUN = 4  # number of parts of exports/{name}/{run}/{file}
CANARY = "-drill"
"""Suffix of the name of a channel that serves another channel's releases in a drill."""
_EVERYTHING = Retention(days=float("inf"))


class _Continued(Stored):
    run: str = ""
    directory: str = ""


class _Graph(Stored):
    channel: str | None = None


class _Spec(Stored):
    """References of a run's spec to a channel and another run."""

    graph: _Graph = _Graph()
    previous: _Continued | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Objects of one run in the store.

    Attributes:
        run: its id.
        objects: below its prefix.
        exports: written by it into the store.
        releases: that are made of it, with their channels.
    """

    run: str
    objects: list[ObjectInfo] = field(default_factory=list)
    exports: list[ObjectInfo] = field(default_factory=list)
    releases: list[tuple[Channel, Release]] = field(default_factory=list)

    def unchanged(self, ages: Ages) -> bool:
        """Return whether none of its objects was written within the grace."""
        return ages.unchanged((*self.objects, *self.exports))


def stored_runs(store: Store) -> dict[str, StoredRun]:
    """List every run that has any object, by id.

    Another program's objects below ``runs/`` are no run: a run is released, held, planned or being removed.

    Raises:
        ConfigError: the store has objects of another program, and none of this package.
    """
    runs: dict[str, StoredRun] = {}
    below: dict[str, list[ObjectInfo]] = {}
    names = all_channel_names(store)

    def run(name: str) -> StoredRun:
        return runs.setdefault(name, StoredRun(name))

    # Releases are read before data: a release that is made from now on was held after this began, and is young.
    for channel in (Channel(store, name) for name in names):
        for release in channel.releases():
            run(run_with(release.directory, release.run)).releases.append((channel, release))
    for info in store.list(RUNS):
        below.setdefault(info.key.split("/")[1], []).append(info)
    condemned = {info.key for info in store.list(TOMBSTONES)}  # read after the data, for runs that lost their spec
    for name, infos in below.items():
        marks = {hold_key(name), _spec_key(name)}
        if name in runs or tombstone_key(name) in condemned or any(info.key in marks for info in infos):
            run(name).objects.extend(infos)
    if below and not (names or runs or condemned):
        raise ConfigError(
            f"{store.url}: no graph's store: none of the {len(below)} folders below {RUNS} is a run of this package; "
            "give the `store` of the graph spec"
        )
    for info in store.list(EXPORTS):
        parts = info.key.split("/")
        if len(parts) >= _EXPORT_OF_RUN and parts[2] in runs:
            runs[parts[2]].exports.append(info)
    return runs


def staying_releases(
    store: Store, runs: Mapping[str, StoredRun], retention: Retention, *, only: Collection[str] | None, now: float
) -> list[tuple[str, Release]]:
    """Return the releases that stay, with the run each is made of.

    Args:
        store: the graph's.
        runs: of the store.
        retention: rules for the releases that stay.
        only: channels to which they apply, with those of their drills; all releases of the others stay. None: they
            apply to every channel.
        now: seconds by the store's clock.
    """
    by_channel: dict[str, dict[int, tuple[str, Release]]] = {}
    for run in runs.values():
        for owner, release in run.releases:
            by_channel.setdefault(owner.name, {})[release.seq] = (run.run, release)
    pointers = {name: Channel(store, name).current() for name in {*all_channel_names(store), *by_channel}}
    shared = {(each.canary.channel, each.canary.seq) for each in pointers.values() if each.canary is not None}
    staying = []
    for name, releases in by_channel.items():
        in_order = [releases[seq][1] for seq in sorted(releases)]
        canaries = {seq for other, seq in shared if other == name}
        rules = retention if only is None or {name, name.removesuffix(CANARY)} & {*only} else _EVERYTHING
        seqs = _kept(Channel(store, name), in_order, pointers[name].release, canaries, rules, now)
        staying += [releases[seq] for seq in seqs]
    return staying


def _kept(
    channel: Channel,
    releases: list[Release],
    current: Release | None,
    shared: set[int],
    retention: Retention,
    now: float,
) -> set[int]:
    listed = channel.store.list(f"channels/{channel.name}/releases/")
    written = {info.key: now if info.modified is None else info.modified for info in listed}
    return kept(
        releases,
        {release.seq: written.get(channel.release_key(release.seq), now) for release in releases},
        current=current.seq if current else None,
        pinned=pins(channel) | {pin.seq for pin in service_pins(channel)} | shared,
        retention=retention,
        now=now,
    )


def at_work(store: Store, runs: Mapping[str, StoredRun], ages: Ages) -> set[str]:
    """Return the runs at work, and those that they continue.

    A run is at work when any of its objects was written within the grace.
    """
    used = {run.run for run in runs.values() if not run.unchanged(ages)}
    continued = (_spec(store, run).previous for run in used)
    return used | {run_with(each.directory, each.run) for each in continued if each is not None and each.run}


def of_another_channel(store: Store, runs: Mapping[str, StoredRun], only: Collection[str]) -> set[str]:
    """Return the unreleased runs that were planned for other channels.

    One without a spec, as an interrupted ``adopt`` or ``repartition`` leaves it, was planned for none.
    """
    specs = {info.key for run in runs.values() for info in run.objects if info.key == _spec_key(run.run)}
    planned = (run.run for run in runs.values() if not run.releases and _spec_key(run.run) in specs)
    return {run for run in planned if _spec(store, run).graph.channel not in only}


def _spec_key(run: str) -> str:
    return f"{RUNS}{run}/{RunLayout.spec}"


def _spec(store: Store, run: str) -> _Spec:
    """Read the references of a run's spec; none without a spec.

    Raises:
        FormatError: it is damaged, so that the needs of the run are unknown.
    """
    key = _spec_key(run)
    try:
        return _Spec.model_validate_json(store.get(key).data)
    except NotFoundError:
        return _Spec()
    except ValidationError:
        raise FormatError(
            f"{store.url}/{key}: not a run spec, so what the run needs is not known; restore it"
        ) from None
