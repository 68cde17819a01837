"""``redo``: nights of a chain again, from a corrected day on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.advice import way_to
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.errors import ConfigError, ConflictError, InputError, QualityGateError
from pbg_tasks.prepare.sources import snapshot_keys
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.context import graph_store
from pbg_tasks.tasks.nightly.chain import read_spec, run_chain
from pbg_tasks.tasks.nightly.newest import keys_there

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.publish import Release


class RedoneDay(TypedDict):
    """A day that was done again; ``release``: None where it became none."""

    snapshot: str
    run: str
    directory: str | None
    release: int | None


# By a call, as `from` is no name in Python.
Redone = TypedDict("Redone", {"from": str, "days": list[str], "redone": list[RedoneDay], "served": bool})


def redo(spec: Path, first: str, *, overrides: Sequence[str] | None = None, dry_run: bool = False) -> Redone:
    """Repeat a day of a chain and all released days after it.

    The oldest comes first, and each day continues what the day before was redone as. Readers keep the release that the
    channel serves until its own day is redone. A redo that was interrupted goes on where it was, when called again.
    Later days that are released meanwhile are repeated, too, for they may continue an old release.

    Args:
        spec: the graph spec's file.
        first: key of the corrected snapshot.
        overrides: ``key.path=value`` changes of the spec.
        dry_run: only return the days.

    Returns:
        ``days`` in their order, of each that was done its run and release in ``redone``, and in ``served`` whether the
            channel serves the last one.

    Raises:
        ConfigError: the nights of the graph are no chain.
        InputError: there is no such snapshot.
        QualityGateError: a gate refused a day. Later days would continue its old release, so they are left as they
            were; the message names the days that are left.
        ConflictError: the channel was rolled back to a release before that of a redone day, or to another one of it; or
            it has a release of a day between whose snapshot is gone.
    """
    written = read_spec(spec, overrides)
    graph = written.graph
    options = "".join(f" -p {shlex.quote(each)}" for each in overrides or ())
    days = _days(graph, first, options)
    say(f"redo: {len(days)} days, {days[0]} to {days[-1]}" if len(days) > 1 else f"redo: {days[0]}, the last day")
    _warn_of_beginning(graph, first)
    redone: list[RedoneDay] = []
    while not dry_run and len(redone) < len(days):
        number, day = len(redone) + 1, days[len(redone)]
        _check_way(graph, redone, day, options)
        say(f"redo: {day}, day {number} of {len(days)}")
        try:
            summary = run_chain(spec, day, written=written, overrides=overrides)
        except QualityGateError as error:
            raise type(error)(
                f"{error}; {number - 1} of {len(days)} days are redone, {', '.join(days[number - 1 :])} are not: mend "
                f"or approve {day}, then `pbg redo SPEC {day}{options}`"
            ) from None
        made = summary["release"]
        seq, place = (made["release"], made["directory"]) if made else (None, None)
        redone.append({"snapshot": day, "run": summary["run"], "directory": place, "release": seq})
        if number == len(days):
            days += _days(graph, day, options)[1:]
    served = bool(redone) and _is_served(graph, redone[-1])
    return {"from": first, "days": days, "redone": redone, "served": served}


def _warn_of_beginning(graph: GraphSpec, first: str) -> None:
    """Warn of a day that begins a chain anew.

    The number of the oldest release shows that a collection removed earlier ones.
    """
    channel = Channel(graph_store(graph), graph.channel)
    if channel.before(first) is None and min(channel.numbers(), default=1) > 1:
        say(
            f"warning: redo: no release before {first} is kept, so that day begins anew, and the days after it "
            "continue vectors of another space than readers have"
        )


def _check_way(graph: GraphSpec, redone: Sequence[RedoneDay], day: str, options: str) -> None:
    """Check that a day would continue the day before as redone.

    A day that was released before its redo is not published again, also where the channel was rolled back from or past
    it, or where another release took its place: then files or settings are as they were before that one. A day between
    whose snapshot is gone is not done again, and its release is of the chain that is corrected.
    """
    number = redone[-1]["release"] if redone else None
    if number is None:
        return
    before, continued = redone[-1], Channel(graph_store(graph), graph.channel).before(day)
    if continued is None or continued.seq != before["release"]:
        served = "no release" if continued is None else f"release {continued.seq} of {continued.snapshot}"
        raise ConflictError(
            f"channel {graph.channel!r} was rolled back or redone, or has a release of a day between whose snapshot is "
            f"gone, so {day} would continue {served}, not release {number} of {before['snapshot']}; move the channel "
            f"there, {way_to(graph.channel, number)}, then `pbg redo SPEC {day}{options}`"
        )


def _is_left(there: Release, day: RedoneDay) -> bool:
    """Return whether a release is older than a day's, or replaced it."""
    there_order, order = snapshot_order(there.snapshot), snapshot_order(day["snapshot"])
    return there_order < order or (there_order == order and there.seq != day["release"])


def _is_served(graph: GraphSpec, last: RedoneDay) -> bool:
    """Return whether the last day is served; report another release."""
    served, number = Channel(graph_store(graph), graph.channel).current().release, last["release"]
    if served is None or number is None:
        return False
    if _is_left(served, last):
        say(
            f"redo: channel {graph.channel} was rolled back or redone, and serves release {served.seq} of "
            f"{served.snapshot}; {way_to(graph.channel, number)} moves it to release {number} of {last['snapshot']}"
        )
    return served.run == last["run"].rpartition("/")[2]


def _days(graph: GraphSpec, first: str, options: str) -> list[str]:
    """List the first day and later ones with release and snapshot."""
    if graph.nights.walk != "chain":
        raise ConfigError(
            f"graph {graph.graph}: nights.walk is {graph.nights.walk!r}, so no night depends on {first!r}; do that day "
            f"alone again: `pbg run SPEC {first}{options}`"
        )
    there = snapshot_keys(graph.snapshots)
    if first not in there:
        where = f"{graph.snapshots.location}: there is no snapshot {first!r}"
        raise InputError(f"{where}{keys_there(graph.snapshots, first) or '; check the key and location'}")
    released = {release.snapshot for release in Channel(graph_store(graph), graph.channel).releases()}
    later = (key for key in there if key in released and snapshot_order(key) > snapshot_order(first))
    return [first, *sorted(later, key=snapshot_order)]
