"""Commands for a graph's releases: roll back, pin, skip, collect, drill.

Users run them by hand, a scheduler runs some of them regularly. The module is over 400 lines because the shape of each
command's answer is beside it.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, NotRequired, TypedDict
from zoneinfo import ZoneInfo

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.names import check_name
from pbg_tasks.config.run import check_snapshot_key
from pbg_tasks.errors import ConfigError, FormatError, InputError, PbgError, StorageError, printable
from pbg_tasks.progress import human_count, human_seconds, say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.channel import all_channel_names, channel_names
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.descent import descent
from pbg_tasks.publish.reachability import CANARY
from pbg_tasks.publish.retention import Retention
from pbg_tasks.publish.retention import pin as keep
from pbg_tasks.publish.retention import unpin as let_go
from pbg_tasks.publish.service_pins import ServicePin, pin_service, service_pins, unpin_service
from pbg_tasks.publish.skips import skip_anew
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext, graph_store
from pbg_tasks.tasks.view.days_left import why_broken

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.publish import Release

HOUR_SECONDS = 3600.0
DRILL_SECONDS = 5.0
KEPT_RELEASES = 14
_DATED = re.compile(r"[0-9]{4}-?[0-9]{2}")
"""Date in the key of an adopted checkpoint; without one the key may be any, and is no form of the nights' keys."""


class RolledBack(TypedDict):
    """A channel that points to an earlier release.

    ``sinks`` has, for each vector store of the spec's exports, whether its aliases went with it.
    """

    channel: str
    was: int
    release: int
    directory: str
    sinks: NotRequired[dict[str, bool]]


class Unpinned(TypedDict):
    """A release that retention decides about, or a service without a pin."""

    channel: str
    release: int | None
    service: NotRequired[str]


class Pinned(Unpinned):
    """A release that stays, and perhaps the service that reads it."""

    run: str
    owner: NotRequired[str]
    at: NotRequired[str]
    until: NotRequired[str | None]


class Skipped(TypedDict):
    """A snapshot that a chain goes on without."""

    channel: str
    skipped: str


class Freed(TypedDict):
    """Releases and runs that a collection removed, or would remove."""

    store: str
    dry_run: bool
    kept_releases: int
    releases: list[str]
    runs: list[str]
    objects: int
    bytes: int
    uploads: int
    orphans: int
    unwatched_runs: list[str]
    silent_hours: float


class Drilled(TypedDict):
    """A drill; ``releases`` and ``seconds`` are there if it was ``drilled``."""

    channel: str
    drilled: bool
    releases: NotRequired[list[int]]
    seconds: NotRequired[dict[str, float]]


def _channel(spec: Path, name: str | None = None) -> Channel:
    """Return a graph's channel; by default that of its readers."""
    graph = load_graph_spec(spec)
    if name is not None:
        check_name(name, "channel")
    return Channel(graph_store(graph), name or graph.read_channel)


def _served(url: str, name: str | None) -> tuple[Channel, GraphSpec]:
    """Return a store's channel and the spec of its release.

    Raises:
        InputError: no channel of the store points to a release.
        ConfigError: there are several, or the run of the release has no spec.
    """
    store = open_store(url)
    if name is None:
        names = channel_names(store)
        if not names:
            raise InputError(
                f"{store.url}: no channel here points to a release; name a graph spec (.yaml) or its store"
            )
        if len(names) > 1:
            raise ConfigError(
                f"{store.url}: has the channels {', '.join(names)}; choose with --channel, or name the spec"
            )
        name = names[0]
    check_name(name, "channel")
    channel = Channel(store, name)
    release = channel.current().release
    if release is None:
        raise InputError(f"{store.url}: channel {name!r} points to no release; `pbg releases {store.url}` lists them")
    try:
        graph = RunContext.within(store, release.run).spec.graph
    except ConfigError:
        raise ConfigError(
            f"{store.url}: the run of release {release.seq} has no spec any more, which names the vector stores that "
            "follow the channel; name the graph spec: `pbg rollback SPEC`"
        ) from None
    return channel, graph.model_copy(update={"store": store.url})


def rollback(
    place: Path | str, *, to: int | None = None, channel: str | None = None, by: str | None = None
) -> RolledBack:
    """Point a graph's channel back to an earlier release, by one swap.

    A share of the keys that reads another release ends. Aliases of vector stores follow, where they still have the
    tables of that release.

    Args:
        place: the graph spec's file; or, as a text, the store, whose sinks are those of the release that is left.
        to: number of the release; the one before by default.
        channel: its name; by default the one that readers follow, in a store its only one.
        by: name of the person.

    Raises:
        InputError: there is no such release.
        ConfigError: the store has several channels, or lacks the spec that names the sinks.
        ConflictError: the channel was moved meanwhile, or the release is being removed.
        StorageError: the channel was moved, but a vector store failed.
    """
    if isinstance(place, str):
        moved, graph = _served(place, channel)
    else:
        moved, graph = _channel(place, channel), load_graph_spec(place)
    was, now = moved.rollback(to, by=by)
    say(f"rollback: channel {moved.name} went from release {was.seq} to {now.seq}")
    _warn_of_descent(moved, now)
    directory = f"{moved.store.url}/{now.directory}"
    done: RolledBack = {"channel": moved.name, "was": was.seq, "release": now.seq, "directory": directory}
    if any(export.is_sink for export in graph.exports):
        from pbg_tasks.tasks.exchange.serving import follow_all

        done["sinks"] = follow_all(graph.model_copy(update={"channel": moved.name}), now)
    return done


def _warn_of_descent(channel: Channel, release: Release) -> None:
    """Warn of a release that was trained from a void one."""
    with suppress(PbgError):  # the channel was moved, whatever else is damaged
        way = descent(channel, list(channel.releases()), channel.current()).get(release.seq)
        if way is not None and way["descends_from"] is not None:
            say(
                f"warning: release {release.seq} was trained from release {way['descends_from']}, which was "
                f"{way['because']}; `pbg releases` names such releases"
            )


def pin(
    spec: Path,
    release: int,
    *,
    service: str | None = None,
    owner: str | None = None,
    until: date | None = None,
    channel: str | None = None,
) -> Pinned:
    """Keep a release until it is unpinned; let a service read it.

    Args:
        spec: the graph spec's file.
        release: number of the release.
        service: that reads it; None: it is only kept.
        owner: person or team that is responsible for the service.
        until: last day on which the service needs it; None: not known.
        channel: of the release; by default the one that readers follow.

    Raises:
        InputError: there is no such release.
        ConfigError: the service cannot have that name, or the day is over; or there is an owner or a day, but no
            service.
        ConflictError: it is being removed, or another process pinned the service meanwhile.
    """
    kept_in = _channel(spec, channel)
    if service is None:
        if owner is not None or until is not None:
            raise ConfigError("--owner and --until are of a service's pin: name the service with --for")
        kept = keep(kept_in, release)
        say(f"pin: release {release} of channel {kept_in.name} stays")
        return {"channel": kept_in.name, "release": release, "run": kept.run}
    if owner is None:
        raise ConfigError(f"the pin of service {service!r} needs an owner: --owner NAME")
    pinned = pin_service(kept_in, service, release, owner=owner, until=until)
    say(f"pin: service {service} reads release {release} of channel {kept_in.name}")
    return {
        "channel": kept_in.name,
        "release": release,
        "run": pinned.run,
        "service": service,
        "owner": owner,
        "at": pinned.at.isoformat(timespec="seconds"),
        "until": None if until is None else until.isoformat(),
    }


def unpin(
    spec: Path, release: int | None = None, *, service: str | None = None, channel: str | None = None
) -> Unpinned:
    """Remove the pin of a release, or that of a service.

    Raises:
        ConfigError: neither or both are given.
    """
    kept_in = _channel(spec, channel)
    if (release is None) == (service is None):
        raise ConfigError("unpin takes the number of a release, or --for and the name of a service")
    if service is not None:
        unpin_service(kept_in, service)
        say(f"unpin: service {service} reads what channel {kept_in.name} serves")
        return {"channel": kept_in.name, "release": None, "service": service}
    if release is not None:
        let_go(kept_in, release)
    return {"channel": kept_in.name, "release": release}


def skip(spec: Path, snapshot: str, *, reason: str | None = None) -> Skipped:
    """Let the nights of a chain go on without a snapshot.

    Also without a run of it that has not finished. Without a reason, that of its failure is kept.

    Raises:
        ConfigError: the key is none, is no day of a month, or is written otherwise than those of the releases and of
            the calendar.
    """
    graph = load_graph_spec(spec)
    channel = _channel(spec, graph.channel)
    releases = {release.snapshot: release for release in channel.releases()}
    _check_key(graph, snapshot, [key for key, each in releases.items() if _DATED.search(key) or not each.is_adopted])
    skip_anew(channel, snapshot, reason or why_broken(channel, graph.graph, snapshot))
    if snapshot in releases:
        say(
            f"skip: {snapshot} has release {releases[snapshot].seq} of channel {channel.name} already, so no night "
            f"waits for it, and the release stays; `pbg rollback SPEC --channel {channel.name}` leaves a release that "
            "is served"
        )
    else:
        say(f"skip: the nights of channel {channel.name} go on without {snapshot}")
    return {"channel": channel.name, "skipped": snapshot}


def _check_key(graph: GraphSpec, snapshot: str, known: list[str]) -> None:
    """Refuse a key unlike all known ones.

    The place of the snapshots is not listed, because the role that publishes may not read there.
    """
    check_snapshot_key(snapshot)
    if (day := re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])", snapshot)) is not None:
        try:
            date.fromisoformat(day[0])
        except ValueError as error:
            raise ConfigError(f"snapshot {snapshot!r}: {day[0]} is no date ({error}); name a day that exists") from None
    calendar = graph.nights.calendar
    if calendar is not None:
        known = [*known, datetime.now(ZoneInfo(calendar.timezone)).strftime(calendar.key_format)]
    forms = {re.sub(r"[0-9]+", "0", key) for key in known}
    if known and re.sub(r"[0-9]+", "0", snapshot) not in forms:
        raise ConfigError(f"no snapshot of {graph.graph} has a key like {snapshot!r}; such keys are {known[-1]!r}")


def gc(
    store: str,
    *,
    channel: str | Sequence[str] | None = None,
    keep_releases: int | None = None,
    keep_days: float | None = None,
    grace_hours: float,
    dry_run: bool = False,
    trust_clock: bool = False,
) -> Freed:
    """Remove the releases and runs of a graph's store that nothing needs.

    Args:
        store: its URL.
        channel: names of the only ones whose releases go; None or none: those of every channel.
        keep_releases: of how many of a channel's newest snapshots the releases stay.
        keep_days: for how many days a release stays; what either of the two keeps stays.
        grace_hours: for how many hours after it was written or used an object stays in any case.
        dry_run: only report what would be removed.
        trust_clock: the clocks of all machines that write to a directory are right, so that its dates count.

    Raises:
        ConfigError: the store's files are another program's; nothing was removed.
        FormatError: a document that references runs or releases is damaged; nothing was removed.
    """
    if keep_releases is None and keep_days is None:
        keep_releases = KEPT_RELEASES
    retention = Retention(keep_releases or 0, keep_days or 0.0)
    place, only = open_store(store), [channel] if isinstance(channel, str) else [*(channel or ())]
    found = collect(
        place,
        retention,
        grace=grace_hours * HOUR_SECONDS,
        channel=only or None,
        dry_run=dry_run,
        trust_clock=trust_clock,
    )
    if not found.stored and not found.kept:
        say(
            f"gc: {place.url} holds no run and no release: nothing was planned there yet, or it is not the `store` of "
            "a graph spec; check the URL"
        )
    for name in only or all_channel_names(place):
        for expired in filter(ServicePin.is_expired, service_pins(Channel(place, name))):
            say(
                f"warning: the pin of service {expired.service!r} on release {expired.seq} of channel {name} ended on "
                f"{expired.until} and still keeps it; ask {printable(expired.owner)}, then `pbg unpin SPEC --for "
                f"{expired.service} --channel {name}` or pin it anew"
            )
    if found.unwatched:
        say(
            f"gc: left {len(found.unwatched)} runs that nothing needs: files in {place.url} are dated by the machines "
            f"that write them, and this machine, since its start, has not yet seen these unchanged for {grace_hours:g} "
            "h; a later collection on it removes them, or --trust-clock does at once, by the dates"
        )
    if found.silence:
        clock = datetime.now(UTC).isoformat(sep=" ", timespec="minutes")
        say(
            f"gc: {found.silence / HOUR_SECONDS:.1f} h before {clock} do not count as days of a release: nothing was "
            f"written to {place.url} then, or this machine's clock is ahead; if it is right, --trust-clock counts them"
        )
    does = "would free" if dry_run else "freed"
    say(
        f"gc: {does} {human_count(found.size)}B in {found.objects} objects of {len(found.runs)} runs, "
        f"{len(found.releases)} of them released; {found.kept} releases stay"
        + (f", {found.young} of them for the grace of {grace_hours:g} h" if found.young else "")
        + (f"; {found.uploads} uploads never ended" if found.uploads else "")
    )
    return {
        "store": place.url,
        "dry_run": dry_run,
        "kept_releases": found.kept,
        "releases": found.releases,
        "runs": found.runs,
        "objects": found.objects,
        "bytes": found.size,
        "uploads": found.uploads,
        "orphans": found.orphans,
        "unwatched_runs": found.unwatched,
        "silent_hours": round(found.silence / HOUR_SECONDS, 1),
    }


def drill(spec: Path, *, limit: float = DRILL_SECONDS) -> Drilled:
    """Roll a canary channel back and forward, as a rehearsal.

    It goes between the last two releases of the channel. The canary, ``{channel}-drill``, serves the same runs, so
    nothing is copied, and readers notice nothing.

    Args:
        spec: the graph spec's file.
        limit: seconds that each of the two ways may take, with every file's presence checked.

    Raises:
        StorageError: it took longer.
        FormatError: the canary does not serve what it should, or a file is missing.
    """
    channel = _channel(spec)
    release = channel.current().release
    before = channel.before(release.snapshot) if release else None
    if release is None or before is None:
        say(f"drill: channel {channel.name} has no release to go back to yet")
        return {"channel": channel.name, "drilled": False}
    moved = Channel(channel.store, f"{channel.name}{CANARY}")
    targets = {way: _serve(moved, each) for way, each in (("back", before), ("forward", release))}
    seconds = {way: _move(moved, target, limit) for way, target in targets.items()}
    return {"channel": moved.name, "drilled": True, "releases": [before.seq, release.seq], "seconds": seconds}


def _serve(canary: Channel, release: Release) -> Release:
    """Give a canary channel a release of the same files."""
    return canary.publish(release.candidate(), planned_on=None, independent=True)[0]


def _move(canary: Channel, target: Release, limit: float) -> float:
    """Point the canary to a release until a reader sees it.

    Returns:
        Seconds.
    """
    started = time.monotonic()
    canary.rollback(to=target.seq)
    seen = canary.current().release
    seconds = time.monotonic() - started
    if seen != target:
        served = seen and seen.seq
        raise FormatError(f"channel {canary.name!r} serves release {served} after a roll-back to {target.seq}")
    files = open_preserved(canary.store, target.directory, expected_sha256=target.manifest_sha256)
    for name, record in files.records.items():
        info = canary.store.head(f"{target.directory}/{name}")
        if info is None or info.size != record.size:
            raise FormatError(f"{files.url}/{name}: missing or of another size, so this release could not be served")
    if seconds > limit:
        raise StorageError(f"rolling channel {canary.name!r} took {seconds:.1f} s; at most {limit:g} s are allowed")
    say(f"drill: channel {canary.name} went to snapshot {target.snapshot} in {human_seconds(seconds)}")
    return round(seconds, 3)
