"""Choice of the best release of the last nights.

Without torch, for ``plan`` asks it, too.

Every release keeps the filtered MRR that its run and an earlier release had on the same edges. The ratios link
releases: their product along a way from one release to another estimates how the two compare, without asking the
models. It is only an estimate, so the chosen release is asked tonight's edges before the gate goes by it.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import Change, Metrics, ReleaseData
from pbg_tasks.errors import InputError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.nightly.comparison_target import incomparable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pbg_tasks.config import Gates
    from pbg_tasks.config.results import Evaluation
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext

    Links = Mapping[int, Mapping[int, float]]

_NOTICEABLE = 0.1
"""Part of the limit by which a release must be better than tonight's baseline to be asked beside it."""


@dataclass(frozen=True, slots=True)
class _Night:
    """Facts of a release that decide whether it may be the best.

    Attributes:
        seq: number of the release.
        snapshot: its key.
        previous: number of the release that the channel pointed to before.
        changes: its run beside earlier releases.
        judged: whether the gates passed it by themselves, and it can be asked tonight's edges.
        fall_approved: whether its fall against earlier releases was approved.
    """

    seq: int
    snapshot: str
    previous: int | None
    changes: list[Change]
    judged: bool
    fall_approved: bool

    @classmethod
    def of(cls, run: RunContext, release: Release) -> _Night:
        data = ReleaseData.model_validate(release.data)
        return cls(
            release.seq,
            release.snapshot,
            release.previous,
            Metrics.model_validate(release.metrics).changes,
            judged=data.accepted is None and not data.decisions and incomparable(run, release) is None,
            fall_approved=data.fall_approved,
        )

    @property
    def order(self) -> tuple[Any, int]:
        """Place among releases: by snapshot, and of one snapshot by number."""
        return snapshot_order(self.snapshot), self.seq


def best_release(run: RunContext, baseline: Release | None) -> Release | None:
    """Return the best release of the last nights before a run's.

    None where there is none, or the spec asks for none. It is the baseline unless another one is noticeably better.
    Some releases do not count: those that the channel was rolled back from, those whose snapshot was redone, those that
    a gate refused before they were approved or accepted, and all up to the last one whose fall was approved.

    Args:
        run: of tonight.
        baseline: release that the run is compared with in any case.
    """
    gates = run.spec.graph.gates
    if not gates.trend_nights or not gates.max_trend_drop.asked:
        return None
    channel = Channel(run.store, run.spec.graph.channel)
    current = channel.current().release
    if current is None:
        return None
    recent = _recent(run, channel, current.seq, gates.trend_nights)
    counted = _window(_counted(recent, current.seq), run.spec.snapshot, gates)
    chosen = _best(counted, _links(recent.values(), gates.min_common_edges), baseline, _noticeable(gates))
    if chosen is None or (baseline is not None and chosen == baseline.seq):
        return None if chosen is None else baseline
    try:
        return channel.release(chosen)
    except InputError:
        say(f"release {chosen} was removed meanwhile: not compared with it")
        return None


def changes_of(evaluated: Evaluation) -> list[Change]:
    """Return what a release keeps of its run's comparisons with earlier releases.

    Args:
        evaluated: findings of ``eval``, with ``against`` and ``best`` where there are any.
    """
    return [
        Change(release=each.release, edges=each.edges, candidate=candidate, current=current)
        for each in (evaluated.against, evaluated.best)
        if each is not None and each.edges
        if (candidate := each.candidate.filtered.figure("mrr")) is not None
        if (current := each.current.filtered.figure("mrr")) is not None
    ]


def _recent(run: RunContext, channel: Channel, current: int, nights: int) -> dict[int, _Night]:
    """Read the newest releases, by number.

    They are enough once so many of earlier snapshots were current: on the way back from the current release, snapshots
    only get older.
    """
    found: dict[int, _Night] = {}
    served: set[str] = set()
    on_way: int | None = current
    for release in channel.releases(newest_first=True):
        found[release.seq] = _Night.of(run, release)
        if release.seq == on_way:
            on_way = release.previous
            if snapshot_order(release.snapshot) < snapshot_order(run.spec.snapshot):
                served.add(release.snapshot)
            if len(served) >= nights:
                break
    return found


def _counted(every: Mapping[int, _Night], current: int) -> list[_Night]:
    """Return the releases that may count, one of each snapshot.

    The newest counts, unless the channel left it: a roll-back leaves releases. Those on the way to the current release
    were not left, nor those that the channel never pointed to, for it served a newer snapshot by then.
    """
    served = set(_way(every, current))
    newest: dict[str, _Night] = {}
    for night in sorted(every.values(), key=lambda each: each.seq):
        if night.seq in served or _came_late(night, every):
            newest[night.snapshot] = night
    return list(newest.values())


def _way(every: Mapping[int, _Night], current: int) -> Iterator[int]:
    here = every.get(current)
    while here is not None:
        yield here.seq
        further = here.previous
        here = every.get(further) if further is not None and further < here.seq else None


def _came_late(night: _Night, every: Mapping[int, _Night]) -> bool:
    there = every.get(night.previous) if night.previous is not None else None
    return there is not None and snapshot_order(there.snapshot) > snapshot_order(night.snapshot)


def _window(nights: Iterable[_Night], snapshot: str, gates: Gates) -> list[_Night]:
    """Return the last nights before a snapshot that may be the best.

    Those up to an approved fall may not.
    """
    earlier = (each for each in nights if snapshot_order(each.snapshot) < snapshot_order(snapshot))
    last = sorted(earlier, key=lambda each: each.order)[-(gates.trend_nights or 0) :]
    begin = max((place for place, each in enumerate(last, 1) if each.fall_approved), default=0)
    return [each for each in last[begin:] if each.judged]


def _links(nights: Iterable[_Night], min_edges: int) -> Links:
    """Return the links of releases: logarithms of the ratios of their MRRs."""
    links: dict[int, dict[int, float]] = defaultdict(dict)
    for night in nights:
        for change in night.changes:
            if change.edges >= min_edges and change.candidate > 0 and change.current > 0:
                ratio = math.log(change.candidate / change.current)
                links[night.seq][change.release], links[change.release][night.seq] = ratio, -ratio
    return links


def _index(links: Links, start: int) -> dict[int, float]:
    """Return how many times better releases are than one.

    By number, the logarithms: sums along the fewest links.
    """
    found, ahead = {start: 0.0}, deque([start])
    while ahead:
        here = ahead.popleft()
        for there, ratio in links.get(here, {}).items():
            if there not in found:
                found[there] = found[here] - ratio
                ahead.append(there)
    return found


def _best(counted: Collection[_Night], links: Links, baseline: Release | None, noticeable: float) -> int | None:
    """Return the number of the best release.

    It is the baseline's unless another is noticeably better. Where no link leads from the baseline to another release,
    the best of those that are linked with the newest other stands beside it, for a release that compares with nothing
    shall not be the only one.
    """
    start = baseline.seq if baseline is not None else None
    others = [each for each in counted if each.seq != start]
    may_stay = len(others) < len(counted)
    index = _index(links, start) if start is not None else {}
    within = [each for each in others if each.seq in index]
    if not within and others:
        index = _index(links, max(others, key=lambda each: each.order).seq)
        within, may_stay = [each for each in others if each.seq in index], False
    best = max(within, key=lambda each: (index[each.seq], *each.order), default=None)
    if best is None or (may_stay and 1 - math.exp(-index[best.seq]) < noticeable):
        return start if may_stay else None
    return best.seq


def _noticeable(gates: Gates) -> float:
    limits = (gates.max_trend_drop.warn, gates.max_trend_drop.block)
    return _NOTICEABLE * min(limit for limit in limits if limit is not None)
