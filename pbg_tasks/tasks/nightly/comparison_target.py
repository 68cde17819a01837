"""Release that a night is compared with, if it can be.

Without torch, because ``plan`` uses it too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import digest
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import EvalResult, PartitionResult, ValidateResult, parse_result
from pbg_tasks.errors import AccessError, ConfigError, FormatError, InputError, NotFoundError
from pbg_tasks.prepare.data_gate import LOST, Measured
from pbg_tasks.prepare.kept_edges import NIGHTS, KeptEdges
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.descent import rolled_back_from
from pbg_tasks.publish.skips import is_skipped_by_user
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain_order import has_finished, snapshot_before

if TYPE_CHECKING:
    from pbg_tasks.publish import Release
    from pbg_tasks.storage import Store


def release_before(run: RunContext) -> Release | None:
    """Return the release that a run is compared with; None without one.

    It is the release that the run continues; for a night that continues none, the channel's release of an earlier
    snapshot.
    """
    if run.spec.previous is None:
        return Channel(run.store, run.spec.graph.channel).before(run.spec.snapshot)
    return _still_there(run, run.spec.previous.seq)


def awaited(run: RunContext) -> str | None:
    """Return the snapshot before an independent run's, if its night is unfinished.

    None where it has finished, and for other runs. Only independent nights do not wait for the night before. In another
    order of nights the run would have been compared with that snapshot's release. Call this first and
    ``release_before`` then, so that a release that is published meanwhile is not reported as a missing one.
    """
    if run.spec.walk != "independent":
        return None
    try:
        before = snapshot_before(run.spec.graph.snapshots, run.spec.snapshot)
    except AccessError:  # a task may read the files of its snapshot alone
        return None
    if before is None or has_finished(Channel(run.store, run.spec.graph.channel), before):
        return None
    return before


def replaced_release(run: RunContext) -> Release | None:
    """Return the release whose place a run would take; None without one.

    It is the newest one of the run's snapshot, also where the channel serves a later day, as in a redo of a chain. A
    release that the channel was rolled back from has no place to take, and a run that is not to be published takes
    none.
    """
    if not run.spec.publish:
        return None
    channel = Channel(run.store, run.spec.graph.channel)
    pointer = channel.current()
    current, snapshot = pointer.release, run.spec.snapshot
    if current is None or snapshot_order(current.snapshot) < snapshot_order(snapshot):
        return None
    releases = list(channel.releases())
    gone = rolled_back_from(releases, pointer)
    same = (each for each in reversed(releases) if each.snapshot == snapshot and each.run != run.run_id)
    return next((release for release in same if release.seq not in gone), None)


def repeats(run: RunContext, release: Release) -> bool:
    """Return whether only settings differ between a run and a release's.

    Both have the same files and continue the same release. A corrected day has other files, and a day that is redone
    after it continues another release.
    """
    try:
        earlier = RunContext.within(run.store, release.run).spec
    except ConfigError:  # it was removed
        return False
    starts = [spec.previous.run if spec.previous else None for spec in (run.spec, earlier)]
    return run.spec.files == earlier.files and starts[0] == starts[1]


def nights_apart(run: RunContext, since: str | None) -> int:
    """Return the number of nights since an earlier snapshot.

    The night itself counts, and of those between each whose data passed the gate; between independent nights also one
    that is unfinished. A night of refused or skipped data does not, nor one whose release the channel was rolled back
    from: its fault may go on, and would pass a day later as the loss of two nights.

    Args:
        run: the run.
        since: key of the earlier snapshot; None: there is none, which counts as one night.
    """
    return 1 + len(_nights_between(run, since))


def measured_between(run: RunContext, since: str | None) -> Measured | None:
    """Return the losses at the last night between that counts.

    None where none of those that ``nights_apart`` counts was measured against the earlier snapshot.
    """
    for after, night in enumerate(reversed(_nights_between(run, since)), 1):
        found = night.find(ValidateResult) if night is not None else None
        if night is None or found is None or found.difference is None or found.difference.since != since:
            continue
        judged = (found, night.find(PartitionResult))
        checks = [check for each in judged if each is not None for check in each.data_gate.checks]
        lost = {check.name: check.value for check in checks if check.value is not None}
        return Measured({name: share for name, share in lost.items() if name.split()[0] in LOST}, after)
    return None


def kept_before(run: RunContext) -> list[KeptEdges]:
    """Return the edges that released nights kept, newest first.

    They are shares of the edges before. Nights whose results are damaged or do not have them are left out, as are those
    that the channel was rolled back from. An accepted night counts, so that the next one like it only warns. A release
    whose rows were moved has no results: those of the night that it was moved from count.
    """
    channel = Channel(run.store, run.spec.graph.channel)
    releases, tonight = list(channel.releases()), snapshot_order(run.spec.snapshot)
    gone = rolled_back_from(releases, channel.current())
    runs: dict[str, list[str]] = {}
    for release in reversed(releases):
        if release.seq not in gone:
            runs.setdefault(release.snapshot, []).append(release.run)
    before = sorted((key for key in runs if snapshot_order(key) < tonight), key=snapshot_order, reverse=True)
    found: list[KeptEdges] = []
    for snapshot in before:
        keys = (f"runs/{name}/{RunLayout.result(ValidateResult.TASK)}" for name in runs[snapshot])
        key = next((key for key in keys if run.store.head(key) is not None), None)
        with suppress(FormatError, NotFoundError):
            kept = _kept(run.store, key) if key is not None else None
            found += [kept] if kept is not None else []
        if len(found) == NIGHTS:
            break
    return found


def _kept(store: Store, key: str) -> KeptEdges | None:
    """Return the shares in a result of ``validate``, if any."""
    result = parse_result(ValidateResult, store.get(key).data, source=f"{store.url}/{key}")
    edges = result.difference.edges if result.difference is not None else None
    if edges is None or not edges.exact:
        return None
    relations = {name: (each.before or 0, each.added or 0, each.removed or 0) for name, each in edges.relations.items()}
    return KeptEdges.of((edges.before, edges.added, edges.removed), relations)


def _nights_between(run: RunContext, since: str | None) -> list[RunContext | None]:
    """Return the runs of the nights between that count.

    The oldest comes first; None stands for one that has no good data yet.
    """
    from pbg_tasks.prepare.sources import lists_keys, snapshot_keys, snapshot_source

    snapshots = run.spec.graph.snapshots
    if since is None or not lists_keys(snapshot_source(snapshots)):
        return []
    first, last = snapshot_order(since), snapshot_order(run.spec.snapshot)
    try:
        keys = snapshot_keys(snapshots)
    except (ConfigError, AccessError) as error:  # a task may read the files of its snapshot alone
        say(f"warning: what is gone is judged as of one night, as the snapshots cannot be listed: {error}")
        return []
    between = sorted((key for key in keys if first < snapshot_order(key) < last), key=snapshot_order)
    channel = Channel(run.store, run.spec.graph.channel)
    waits, releases = run.spec.walk != "independent", list(channel.releases())
    gone = rolled_back_from(releases, channel.current())
    bad = {each.snapshot for each in releases if each.seq in gone}
    found = {key: _with_good_data(channel, key) for key in between if key not in bad}
    return [night for key, night in found.items() if night is not None or not (waits or has_finished(channel, key))]


def _with_good_data(channel: Channel, snapshot: str) -> RunContext | None:
    """Return a snapshot's run if its data passed the gate.

    The run that was planned last decides, trials left out. What was accepted or approved did not pass, nor did what a
    user skipped.
    """
    if is_skipped_by_user(channel, snapshot):
        return None
    verdicts: list[tuple[float, bool, RunContext]] = []
    result = RunLayout.result(ValidateResult.TASK)
    for info in channel.store.list(f"runs/{snapshot}-"):
        name, _, rest = info.key.removeprefix("runs/").partition("/")
        if rest != result or name.rpartition("-")[0] != snapshot:
            continue
        with suppress(ConfigError, FormatError):  # removed meanwhile, or damaged
            night = RunContext.within(channel.store, name)
            if night.spec.publish and night.spec.graph.channel == channel.name:
                judged = (night.find(ValidateResult), night.find(PartitionResult))
                verdicts.append((night.planned(), not all(_passed_alone(each) for each in judged), night))
    newest = max(verdicts, key=lambda each: each[:2], default=None)
    return None if newest is None or newest[1] else newest[2]


def _passed_alone(result: ValidateResult | PartitionResult | None) -> bool:
    return result is not None and result.data_gate.passed and result.data_gate.accepted is None


def release_evaluated_against(run: RunContext) -> Release | None:
    """Return the release that ``eval`` compared a run with; None without one.

    The channel may have moved since.

    Raises:
        ConfigError: ``eval`` has not finished.
    """
    against = run.need(EvalResult).against
    return None if against is None else _still_there(run, against.release)


def _still_there(run: RunContext, seq: int) -> Release | None:
    try:
        return Channel(run.store, run.spec.graph.channel).release(seq)
    except InputError:
        say(f"release {seq} is there no more: not compared with it")
        return None


def incomparable(run: RunContext, release: Release) -> str | None:
    """Return why a release cannot be ranked on a run's held-out edges.

    It may have been trained on them. None if it can.
    """
    if release.split != digest(run.spec.graph.split.model_dump(mode="json")):
        return "another split had held out other edges"
    if not release.metrics:
        return "it was adopted, and what it was trained on is not known"
    return None
