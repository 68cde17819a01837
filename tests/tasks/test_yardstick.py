"""Choice of the best release, from documents of releases alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pbg_tasks.checkpoint.manifest import encode, encode_unique, sha256
from pbg_tasks.config.base import digest
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import Evaluation
from pbg_tasks.publish import Channel
from pbg_tasks.publish.release import Current, Release
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.yardstick import best_release, changes_of

HASH = "0" * 64
GATES = {"max_trend_drop": {"warn": 0.1, "block": 0.2}}


class Releases:
    """A channel of releases that no run made."""

    def __init__(self, place, **gates):
        place.write_spec(gates=GATES | gates)
        self.graph = load_graph_spec(place.spec)
        self.channel = Channel(open_store(self.graph.store), self.graph.channel)
        self.split = digest(self.graph.split.model_dump(mode="json"))

    def add(self, seq, snapshot, *, ratio=None, of=None, edges=500, serve=True, left=False, previous=0, **data):
        """Record a release.

        With ``ratio``, that of its MRR to that of release ``of``.
        """
        of = seq - 1 if of is None else of
        changes = [] if ratio is None else [{"release": of, "edges": edges, "candidate": 0.2 * ratio, "current": 0.2}]
        release = Release(
            graph="toy",
            channel=self.channel.name,
            seq=seq,
            run=f"{snapshot}-{seq}",
            snapshot=snapshot,
            directory=f"runs/{snapshot}-{seq}/release",
            manifest_sha256=HASH,
            id_layout=HASH,
            vector_space=HASH,
            split=data.pop("split", self.split),
            previous=(seq - 1 or None) if previous == 0 else previous,
            metrics={"filtered": {"count": 2, "mrr": 0.2}, "changes": changes},
            data=data,
        )
        self.channel.store.put_new(self.channel.release_key(seq), encode(release))
        if serve:
            self.serve(release, moved_by="rollback" if left else "publish")
        return release

    def serve(self, release, *, moved_by="publish"):
        current = Current(seq=release.seq, release_sha256=sha256(encode(release)), moved_by=moved_by, highest=99)
        self.channel.store.put(f"channels/{self.channel.name}/CURRENT.json", encode_unique(current))

    def best(self, snapshot, baseline):
        """Return the number of the best release for a night."""
        spec = SimpleNamespace(graph=self.graph, snapshot=snapshot)
        run = SimpleNamespace(store=self.channel.store, spec=spec)
        found = best_release(run, None if baseline is None else self.channel.release(baseline))
        return None if found is None else found.seq


def fall(place, *ratios, **gates):
    """Return a channel with one release a day.

    Each is so many times as good as the one before.
    """
    releases = Releases(place, **gates)
    for seq, ratio in enumerate((None, *ratios), 1):
        releases.add(seq, f"d{seq}", ratio=ratio)
    return releases


def test_no_release_has_no_best(place):
    assert Releases(place).best("d1", None) is None


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((), 1),
        ((1.2, 1.1), 3),
        ((0.9, 0.9, 0.9), 1),
        ((1.3, 0.9, 0.9), 2),
        ((0.8, 1.2, 1.2), 4),  # .96 and 1.152 times the first
        ((1.0, 0.995), 3),  # not noticeably worse than the first
        ((1.0, 0.985), 2),
    ],
)
def test_best_follows_products_of_ratios(place, ratios, expected):
    assert fall(place, *ratios).best("d9", len(ratios) + 1) == expected


def test_window_counts_released_snapshots(place):
    releases = fall(place, 0.9, 0.9, 0.9, trend_nights=2)
    assert releases.best("d9", 4) == 3
    assert fall_of(releases, trend_nights=3).best("d9", 4) == 2
    assert fall_of(releases, trend_nights=28).best("d9", 4) == 1


def fall_of(releases, **gates):
    """Return the same channel with other gates."""
    found = object.__new__(Releases)
    found.channel, found.split = releases.channel, releases.split
    found.graph = releases.graph.model_copy(update={"gates": releases.graph.gates.model_copy(update=gates)})
    return found


@pytest.mark.parametrize("off", [{"trend_nights": 0}, {"trend_nights": None}, {"max_trend_drop": {}}])
def test_trend_switched_off_asks_for_no_release(place, off):
    assert fall(place, 0.5, **off).best("d9", 2) is None


def test_later_snapshots_are_no_yardstick(place):
    releases = fall(place, 0.9, 2.0, 1.0)
    assert releases.best("d3", 2) == 1  # a second run of the third day


def test_walk_stops_at_the_window(place, monkeypatch):
    releases = fall(place, *[0.99] * 30, trend_nights=3)
    read = []
    before = releases.channel.store.get

    def get(key, *args, **options):
        read.append(key)
        return before(key, *args, **options)

    monkeypatch.setattr(releases.channel.store, "get", get)
    releases.channel.release(31)
    read.clear()
    assert releases.best("d99", 31) == 29
    assert len([key for key in read if "/releases/" in key]) < 12


def test_release_rolled_back_from_does_not_count(place):
    releases = fall(place, 0.9)
    releases.add(3, "d3", ratio=3.0)
    releases.serve(releases.channel.release(2), moved_by="rollback")
    assert releases.best("d4", 2) == 1
    releases.add(4, "d4", ratio=1.0, of=2, previous=2)  # the way back shows it, once the channel went on
    assert releases.best("d5", 4) == 1


def test_release_that_came_late_counts(place):
    """The channel of independent nights never pointed to the third release."""
    releases = Releases(place)
    releases.add(1, "d1")
    releases.add(2, "d5", ratio=0.9)
    releases.add(3, "d3", ratio=1.5, of=1, previous=2, serve=False)
    assert releases.best("d6", 2) == 3


def test_release_of_a_redone_day_does_not_count(place):
    releases = fall(place, 1.5, 0.7)
    releases.add(4, "d2", ratio=1.0, of=1, previous=3, serve=False)
    assert releases.best("d4", 3) == 3  # 1.05 times the first; the replaced release had 1.5 times


@pytest.mark.parametrize("data", [{"accepted": "half the shops are closed"}, {"decisions": [{"task": "gate"}]}])
def test_release_that_a_gate_refused_does_not_count(place, data):
    releases = Releases(place)
    releases.add(1, "d1")
    releases.add(2, "d2", ratio=2.0, **data)
    releases.add(3, "d3", ratio=0.4)
    assert releases.best("d4", 3) == 1


def test_approved_fall_begins_the_window_anew(place):
    releases = Releases(place)
    releases.add(1, "d1")
    releases.add(2, "d2", ratio=0.5, fall_approved=True, decisions=[{"task": "gate"}])
    assert releases.best("d3", 2) is None
    releases.add(3, "d3", ratio=1.1)
    assert releases.best("d4", 3) == 3
    releases.add(4, "d4", ratio=0.8)
    assert releases.best("d5", 4) == 3


def test_release_of_another_split_does_not_count(place):
    releases = Releases(place)
    releases.add(1, "d1", split="1" * 64)
    releases.add(2, "d2", ratio=0.5)
    assert releases.best("d3", 2) == 2


def test_baseline_without_links_has_another_beside_it(place):
    """A comparison on few edges links no releases."""
    releases = Releases(place, min_common_edges=100)
    releases.add(1, "d1")
    releases.add(2, "d2", ratio=0.8)
    releases.add(3, "d3", ratio=1.9, edges=19)
    assert releases.best("d4", 3) == 1
    releases.add(4, "d4", ratio=0.9, of=1)  # as the comparison with that one links it
    assert releases.best("d5", 4) == 1


def test_release_of_an_earlier_version_stands_beside(place):
    releases = Releases(place)
    for seq in (1, 2, 3):
        releases.add(seq, f"d{seq}")
    assert releases.best("d4", 3) == 2


def test_best_is_among_releases_that_are_left(place):
    releases = fall(place, 0.9, 0.9)
    releases.channel.store.delete(releases.channel.release_key(1))
    assert releases.best("d4", 3) == 2


def test_links_lead_over_a_removed_release(place):
    releases = fall(place, 0.5, 1.5)
    releases.add(4, "d4", ratio=0.9, of=2)
    releases.channel.store.delete(releases.channel.release_key(2))
    assert releases.best("d5", 4) == 3  # both were compared with the second


def test_changes_are_of_comparisons_with_edges():
    figures = {name: {"filtered": {"count": 8, "mrr": mrr}} for name, mrr in (("candidate", 0.2), ("current", 0.25))}
    empty = {"candidate": {"filtered": {"count": 0}}, "current": {"filtered": {"count": 0}}}
    release = {"snapshot": "d1", "reason": None, "difference": {"low": -0.1, "high": 0.1}}

    def changes(**compared):
        evaluated = Evaluation.model_validate({"raw": {}, "filtered": {}} | compared)
        return [change.document() for change in changes_of(evaluated)]

    best = {"release": 3, "snapshot": "d0", "reason": "gone"}
    assert changes(against={"release": 7, "edges": 4} | release | figures, best=best) == [
        {"release": 7, "edges": 4, "candidate": 0.2, "current": 0.25}
    ]
    assert changes(against={"release": 7, "edges": 0} | release | empty) == []
