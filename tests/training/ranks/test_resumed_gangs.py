"""Two ranks end with the bits of one rank.

The one trains the buckets in the order of their leases.

Two ranks never train in the same order twice, so the results of two gangs cannot be compared with each other. But
disjoint buckets commute where a model shares nothing (no parameters of operators, no unpartitioned type). So one rank
that follows the recorded leases computes the same, also where a gang crashed at a bucket and another one resumed: with
partitions exchanged through the store, which costs a crash no more than the buckets in progress.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training.data.edge_files import EdgeChunk
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.pace import Position
from pbg_tasks.training.loop import Assignment
from pbg_tasks.training.ranks.iteration_state import IterationState
from pbg_tasks.training.ranks.leases import LeaseBook
from pbg_tasks.training.ranks.rank import RankWork
from pbg_tasks.training.schedule import Bucket
from tests.training.buckets import PARTITIONS, objects
from tests.training.buckets import make_config as make_single_config
from tests.training.ranks.crashes import Crash, ledger
from tests.training.ranks.gangs import train

EDGES_OF_A_BUCKET = 60
CRASHES = (2, 8, 11)
"""Buckets of rank 1 before which the gang crashes; in two epochs its ranks train 32."""


class Killed(TorchEngine):
    """Engine that ends as by SIGKILL.

    It ends at its n-th bucket, or within a bucket once the other engine has ended.
    """

    def __init__(self, config, dead, bucket=-1):
        super().__init__(config, 1)
        self._dead, self._left = dead, bucket

    def train_bucket(self, *args, **kwargs):
        if self._left == 0:
            self._dead.set()
            raise Crash
        self._left -= 1
        trained = super().train_bucket(*args, **kwargs)
        if self._dead.is_set():
            raise Crash
        return trained


def make_config(*, ahead=False):
    return make_single_config(
        partitions_ahead=ahead,
        entities={"n": {"num_partitions": PARTITIONS}},
        relations=[{"name": "r", "lhs": "n", "rhs": "n", "operator": "none"}],
        global_emb=False,
        eval_fraction=0.0,
        num_epochs=2,
        num_partition_servers=0,
    )


@pytest.fixture
def rounds(monkeypatch):
    """Collect the last round of each epoch, by iteration number."""
    found, begin = {}, IterationState.__init__

    def recorded(round_, *args, **kwargs):
        begin(round_, *args, **kwargs)
        found[round_.iteration.number] = round_

    monkeypatch.setattr(IterationState, "__init__", recorded)
    return found


def leased(rounds):
    """Return the buckets of each epoch in order of counting leases."""
    return [sorted(rounds[number]._done, key=lambda b: rounds[number]._done[b].lease) for number in sorted(rounds)]


def follow(order, monkeypatch):
    """Let one rank train the buckets of each epoch in order."""
    left, acquire = [bucket for epoch in order for bucket in epoch], LeaseBook.acquire

    def chosen(book, rank, old):
        if not book.left:
            return None
        place = book._places[left.pop(0)]
        others = book._open.copy()
        others[place] = False
        book._open &= ~others
        lease = acquire(book, rank, old)
        book._open |= others
        return lease

    monkeypatch.setattr(LeaseBook, "acquire", chosen)


@pytest.mark.parametrize("ahead", [False, True])
def test_two_ranks_end_as_one_following_them(buckets, rounds, tmp_path, monkeypatch, ahead):
    config, together, alone = make_config(), LocalStore(tmp_path / "two"), LocalStore(tmp_path / "one")
    train(make_config(ahead=ahead), buckets, together, tmp_path / "a", world=2)
    follow(leased(rounds), monkeypatch)
    train(config, buckets, alone, tmp_path / "b")
    assert objects(alone) == objects(together)


@pytest.mark.parametrize(("crash", "ahead"), [*((crash, False) for crash in CRASHES), (5, True), (11, True)])
def test_two_resumed_ranks_end_as_one_following(buckets, rounds, tmp_path, monkeypatch, crash, ahead):
    config, together, alone = make_config(), LocalStore(tmp_path / "two"), LocalStore(tmp_path / "one")
    dead, ours = threading.Event(), make_config(ahead=ahead)
    engines = [Killed(config, dead), Killed(config, dead, crash)]
    with pytest.raises(Crash):
        train(ours, buckets, together, tmp_path / "a", world=2, engines=engines, crash=True)
    train(ours, buckets, together, tmp_path / "b", world=2)
    follow(leased(rounds), monkeypatch)
    train(config, buckets, alone, tmp_path / "c")
    assert sum(ledger(together)[1]) <= 2 * (1 + ahead) * EDGES_OF_A_BUCKET
    assert objects(alone) == objects(together)


@pytest.fixture
def work():
    """Work of a rank that holds out two fifths of a bucket."""
    found = object.__new__(RankWork)
    found._iteration, found._eval_fraction = SimpleNamespace(epoch_idx=0, num_epochs=2), 0.4
    found._links = SimpleNamespace(member=SimpleNamespace())
    return found


def test_stored_part_of_a_bucket_has_no_rate(work, capsys):
    """This gang does not know its time."""
    begun = Assignment(EdgeChunk(0, Bucket(0, 1), 0, 100), (0.0, 1.0), begun=Position(3, 60))
    with work.watched(begun):
        pass
    assert "epoch 1/2, bucket (0, 1): done, 60 edges in 0:00, 0 edges/s" in capsys.readouterr().err


def test_stopped_bucket_is_not_reported_as_done(work, capsys):
    for trained in (59, 60):
        with work.watched(Assignment(EdgeChunk(0, Bucket(0, 1), 0, 100), (0.0, 1.0))) as advance:
            advance(trained, 0.5)
        assert ("done" in capsys.readouterr().err) is (trained == 60)
