"""``promote``: let the readers' channel take over a night's release.

By hand, for a share of the readers, or as the spec's ``promote`` rules after a night.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NotRequired, TypedDict

from pbg_tasks.config import RunLayout
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.names import check_name
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import ReleaseData
from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.promotion import Move, stop_share
from pbg_tasks.publish.skips import skipped
from pbg_tasks.tasks.announcing import is_announced
from pbg_tasks.tasks.context import graph_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.promote import Promote
    from pbg_tasks.publish import Release
    from pbg_tasks.publish.release import Pointer


_TRIES = 4
"""Number of times that the rules are asked while other processes move the readers' channel."""
_RULE = "promote: "
"""Begin of the name by which a rule promotes or shares."""


class PromotedRelease(TypedDict):
    """A channel that serves a release of another channel.

    It serves it to all readers or to a share of their keys.

    ``source`` is the other channel, and ``source_release`` the number there; ``release`` that in ``channel``, None for
    a share. ``run`` is None where no run made the release, such as an adopted one. ``was`` is the release that the
    channel served before. Where nothing was promoted, ``reason`` is why.
    ``announced`` is true once other DAGs had its event.
    """

    channel: str
    promoted: bool
    reason: str
    was: int | None
    source: NotRequired[str]
    source_release: NotRequired[int]
    release: NotRequired[int | None]
    share: NotRequired[float]
    snapshot: NotRequired[str]
    run: NotRequired[str | None]
    directory: NotRequired[str]
    announced: NotRequired[bool]
    sinks: NotRequired[dict[str, bool]]


def promote(
    spec: Path,
    release: int | None = None,
    *,
    by: str,
    source: str | None = None,
    to: str | None = None,
    share: float | None = None,
    other_space: bool = False,
) -> PromotedRelease:
    """Let a channel take over a release; done again, it changes nothing.

    Args:
        spec: the graph spec's file.
        release: number in the channel that has it; its current one by default.
        by: name of the person.
        source: channel that has the release; by default that of the spec's nights.
        to: channel that takes it over; by default ``promote.to`` of the spec.
        share: of the channel's keys that reads it; None: all readers.
        other_space: whether its vectors may be in another space than those that the channel serves.

    Raises:
        ConfigError: no channel is named, or it serves another graph.
        InputError: there is no such release.
        FormatError: the release is damaged.
        ConflictError: it is being removed, or is of an older snapshot than the channel serves, or the channel was
            rolled back from it or moved meanwhile.
        IncompatibleError: its vectors are in another space.
    """
    graph = load_graph_spec(spec)
    move = Move.of(
        _channel(graph, source or graph.channel), _target(graph, to), release, by=by, other_space=other_space
    )
    was = move.target.current()
    if share is None:
        return _promoted(graph, move, was)
    return _shared(move, was, share)


def stop(spec: Path, *, by: str, to: str | None = None) -> PromotedRelease:
    """Let all readers of a channel read what it serves.

    Done again, it changes nothing. No rule shares the release again.

    Args:
        spec: the graph spec's file.
        by: name of the person.
        to: channel whose share ends; by default ``promote.to`` of the spec.

    Raises:
        ConfigError: no channel is named.
        ConflictError: the channel was moved meanwhile.
    """
    target = _target(load_graph_spec(spec), to)
    ended, there = stop_share(target, by=by), target.current().release
    number = there.seq if there is not None else None
    why = "nothing was shared" if ended is None else f"{ended.share:.4g} of the keys read release {ended.seq} no more"
    rest = "it serves no release yet" if number is None else f"all readers read release {number}"
    say(f"promote: channel {target.name}: {why}; {rest}")
    return {"channel": target.name, "promoted": False, "reason": why, "was": number}


def promote_due(spec: Path) -> PromotedRelease:
    """Promote by the rules of a spec's file, as ``promote_by_rules`` does.

    Raises:
        ConfigError: the spec has no ``promote``.
    """
    graph = load_graph_spec(spec)
    if graph.promote is None:
        raise ConfigError(f"{spec}: has no section promote, so nothing is ever due; `pbg promote SPEC --to CHANNEL`")
    return promote_by_rules(graph, graph.promote)


def promote_by_rules(graph: GraphSpec, rules: Promote) -> PromotedRelease:
    """Promote or share the newest release of nights, as rules ask for.

    Done again, it changes nothing.

    Args:
        graph: the spec.
        rules: its ``promote``.

    Raises:
        ConfigError: the channel serves another graph.
        FormatError: the newest release is damaged.
        ConflictError: it is being removed, or the channel was moved meanwhile.
        IncompatibleError: its vectors are in another space, so a person has to decide.
    """
    source, target = _channel(graph, graph.channel), _target(graph, None)
    for tries_left in reversed(range(_TRIES)):
        was = target.current()
        try:
            return _promote_due(graph, rules, source, target, was)
        except ConflictError:
            if not tries_left or target.current().info == was.info:
                raise
    raise RuntimeError("no try was left: a bug")


def _promote_due(graph: GraphSpec, rules: Promote, source: Channel, target: Channel, was: Pointer) -> PromotedRelease:
    """Do what the rules ask for where the target's pointer is ``was``."""
    newest = source.current().release
    reason, share = _due(graph, source, newest, was)
    if reason or not rules.is_automatic:
        reason = reason or f"releases of graph {graph.graph} are promoted by hand"
        say(f"promote: {reason}")
        return {"channel": target.name, "promoted": False, "reason": reason, "was": _number(was)}
    rule = f"share {share:g}" if share is not None else f"after {rules.after_nights} nights"
    move = Move.of(
        source,
        target,
        None if newest is None else newest.seq,
        by=f"{_RULE}{rule}",
        other_space=rules.other_space,
        seen=was,
    )
    return _promoted(graph, move, was) if share is None else _shared(move, was, share)


def _due(graph: GraphSpec, source: Channel, newest: Release | None, target: Pointer) -> tuple[str, float | None]:
    """Return why nothing is due, or the share that is.

    A share of None means all readers.
    """
    rules, there = graph.promote, target.release
    stopped, canary = target.stopped, target.canary
    if rules is None or newest is None:
        return f"channel {source.name} has no release yet", None
    if there is not None and there.run == newest.run:
        return "", None  # it is reported as promoted, for its announcement may be due
    if there is not None and snapshot_order(newest.snapshot) < snapshot_order(there.snapshot):
        return f"channel {rules.to} serves a newer snapshot than {source.name}", None
    if stopped is not None and stopped.is_of(source.name, newest.seq):
        again = f"`pbg promote SPEC {newest.seq} --share` sets it again"
        return f"the share of release {newest.seq} was ended; {again}", None
    left = {each.promoted.seq for each in _left(source, target, rules.to) if each.promoted is not None}
    passed, ended = nights_passed(source, newest, after=max(left, default=0))
    reason, share = f"channel {rules.to} was rolled back from release {newest.seq} of {source.name}", None
    if newest.seq not in left:
        reason, share = _by_rules(rules, passed, ended, is_first=there is None)
    of_person = canary is not None and canary.is_of(source.name, newest.seq) and not canary.by.startswith(_RULE)
    if share is not None and canary is not None and of_person:
        return f"{canary.share:.4g} of the keys read release {newest.seq}, as {canary.by} decided", None
    return reason, share


def _by_rules(rules: Promote, passed: int, ended: str, *, is_first: bool) -> tuple[str, float | None]:
    """Return the same for a release that could be promoted.

    Args:
        rules: of the spec.
        passed: number of nights in a row that passed the gates.
        ended: why there are no more.
        is_first: whether the readers' channel has no release yet, whose readers could be shared.
    """
    if rules.after_nights is not None and passed >= rules.after_nights:
        return "", None
    if rules.share is not None and not is_first:
        return "", rules.share
    if rules.after_nights is None:
        return f"channel {rules.to} has no release whose readers could be shared: promote one by hand", None
    return f"{passed} of {rules.after_nights} nights in a row have passed the gates ({ended})", None


def _left(source: Channel, target: Pointer, name: str) -> Iterator[Release]:
    """Yield the source's releases that the target was rolled back from."""
    if not target.rolled_back or target.release is None:
        return
    for release in Channel(source.store, name).releases():
        origin = release.promoted
        later = release.seq > target.release.seq and target.may_have_left(release.seq)
        if later and origin is not None and origin.channel == source.name:
            yield release


def nights_passed(channel: Channel, newest: Release, *, after: int = 0) -> tuple[int, str]:
    """Count the newest nights in a row that passed the gates.

    The row begins anew with a night that a gate refused, a person approved, or that was skipped. Of a night that was
    redone the last release counts, which need not be one that the channel served.

    Args:
        channel: of the nights.
        newest: release up to which nights count.
        after: number of the last release that does not count.

    Returns:
        The count, and why it ends there.
    """
    releases, without = {each.seq: each for each in channel.releases() if each.seq <= newest.seq}, skipped(channel)
    last = {each.snapshot: each for each in releases.values()}
    way, passed = releases.get(newest.seq), list[str]()
    while way is not None:
        release = last[way.snapshot]
        if release.seq <= after:
            return len(passed), "counted since the roll-back"
        if release.promoted is not None or not release.metrics:
            return len(passed), f"release {release.seq} is of no night"
        data = ReleaseData.model_validate(release.data)
        if data.accepted or data.decisions or data.fall_approved:
            return len(passed), f"{release.snapshot} was approved by hand"
        if release.snapshot not in passed:
            passed.append(release.snapshot)
        before = releases.get(way.previous) if way.previous is not None else None
        for missing in sorted(without, key=snapshot_order, reverse=True):
            between = snapshot_order(missing) < snapshot_order(release.snapshot)
            if between and (before is None or snapshot_order(before.snapshot) < snapshot_order(missing)):
                return len(passed), f"{missing} was refused or skipped"
        way = before
    return len(passed), "there are no more"


def _promoted(graph: GraphSpec, move: Move, was: Pointer) -> PromotedRelease:
    release = move.promote()
    number, changed = _number(was), was.release is None or was.release.run != release.run
    how = "serves" if not changed else "begins with release" if number is None else f"went from release {number} to"
    say(f"promote: channel {move.target.name} {how} {release.seq}, which is {move.release.seq} of {move.source.name}")
    done = _result(move, was)
    # A release that no run made has no place for the mark: it counts as announced.
    marked = done["run"] is None or is_announced(move.source.store, move.release.run, "promote")
    done |= {"release": release.seq, "announced": not changed and marked}
    if any(export.is_sink for export in graph.exports):
        from pbg_tasks.tasks.exchange.serving import follow_all

        done["sinks"] = follow_all(graph.model_copy(update={"channel": move.target.name}), release)
    return done


def _shared(move: Move, was: Pointer, share: float) -> PromotedRelease:
    move.share(share)
    say(
        f"promote: {share:.4g} of the keys of channel {move.target.name} read release {move.release.seq} of "
        f"{move.source.name}, all others release {_number(was)}"
    )
    return _result(move, was) | {"release": None, "share": share, "announced": True}


def _result(move: Move, was: Pointer) -> PromotedRelease:
    store, run = move.source.store, move.release.run
    return {
        "channel": move.target.name,
        "promoted": True,
        "reason": "",
        "was": _number(was),
        "source": move.source.name,
        "source_release": move.release.seq,
        "snapshot": move.release.snapshot,
        "run": None if store.head(f"runs/{run}/{RunLayout.spec}") is None else f"{store.url}/runs/{run}",
        "directory": f"{store.url}/{move.release.directory}",
    }


def _number(pointer: Pointer) -> int | None:
    return None if pointer.release is None else pointer.release.seq


def _channel(graph: GraphSpec, name: str) -> Channel:
    check_name(name, "channel")
    return Channel(graph_store(graph), name)


def _target(graph: GraphSpec, to: str | None) -> Channel:
    name = to or (graph.promote.to if graph.promote is not None else None)
    if name is None:
        raise ConfigError(
            f"graph {graph.graph}: names no channel of readers; give it with --to, or in the spec: "
            "promote: {to: production}"
        )
    return _channel(graph, name)


def share_of(text: str) -> float:
    """Return a share that is written as ``10%`` or ``0.1``.

    Raises:
        ConfigError: it is no share, or it is none or all.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match is not None else 0.0
    if not 0 < share < 1:
        raise ConfigError(
            f"--share {text}: a share is more than 0 and less than all, such as 10% or 0.1; --stop ends one, and "
            "without --share all readers follow"
        )
    return share
