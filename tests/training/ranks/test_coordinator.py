"""Answers of rank 0, without the ranks."""

from __future__ import annotations

import threading

import pytest

from pbg_tasks.checkpoint import EdgeChunkRecord, ObjectRecord, StoredObject
from pbg_tasks.errors import ConflictError, RankLostError, StorageError, TrainingDivergedError
from pbg_tasks.training.edge_chunk_records import continued
from pbg_tasks.training.ranks import coordinator as module
from pbg_tasks.training.ranks import coordinator_client as desk_module
from pbg_tasks.training.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.training.ranks.messages import Report
from pbg_tasks.training.ranks.transport.frames import Message
from pbg_tasks.training.ranks.transport.handshake import Peer
from tests.training.ranks.coordinators import PARTITIONS, coordinated, stored
from tests.training.ranks.links import linked


class Gone:
    """The connection of a rank that has gone.

    Its last question may have been invalid.
    """

    def __init__(self, rank, *asked):
        self.peer, self._asked = Peer(rank, "trainer"), list(asked)

    def receive(self, **_):
        if not self._asked:
            raise RankLostError("gone")
        return Message(self._asked.pop(), {}, ())


@pytest.fixture
def shared():
    """The numbers of the records for which the shared parameters were stored."""
    return []


@pytest.fixture
def coordinator(tmp_path, shared, monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    with coordinated(tmp_path, lambda number: shared.append(number) or {}) as (found, _):
        yield found


def test_ranks_wait_for_lost_one_except_to_leave(coordinator):
    coordinator.serve(Gone(1))
    for left, expected in ((False, "wait"), (True, "go")):
        assert coordinator.answer(0, "meet", {"place": "trained 1", "left": left})[0] == expected


def test_rank_with_refused_question_is_not_waited_for(coordinator):
    with pytest.raises(ConflictError, match="rank 1 asks 'nonsense'"):
        coordinator.serve(Gone(1, "nonsense"))
    assert coordinator.answer(0, "meet", {"place": "left", "left": True})[0] == "go"


def test_report_sent_again_changes_nothing(coordinator):
    _, grant = coordinator.answer(1, "next", {"iteration": 1})
    report = {"edge_chunk": {"lhs": grant["lhs"], "rhs": grant["rhs"], "rank": 1, "lease": grant["lease"], "edges": 54}}
    coordinator.answer(1, "next", {"iteration": 1, "report": report, "give": False})
    assert coordinator.answer(1, "leave", {"report": report})[0] == "ok"
    assert [edge_chunk.edges for edge_chunk in coordinator.state.done] == [54]


def test_figures_before_a_bucket_outlast_its_stop():
    """A rank that is stopped while it ranks held-out edges has none."""
    begun = EdgeChunkRecord(lhs=0, rhs=0, rank=0, lease=1, edges=0)
    rest = begun.model_copy(update={"rank": 1, "lease": 2, "edges": 54, "before": {"count": 6.0}})
    assert continued(begun, rest).before == continued(rest, begun).before == {"count": 6.0}


def test_shared_state_is_stored_when_first_rank_leaves(coordinator, shared):
    for rank in (0, 1):
        coordinator.answer(rank, "next", {"iteration": 1})
    coordinator.wait_shared(10)
    assert len(shared) == 1
    for rank in (0, 1):
        coordinator.answer(rank, "leave", {})
    coordinator.wait_shared(10)
    assert len(shared) == 2


def train_all(coordinator):
    """Train every bucket as rank 0."""
    report = None
    while (answer := coordinator.answer(0, "next", {"iteration": 1, "report": report}))[0] == "lease":
        report = {"edge_chunk": {"rank": 0, "edges": 54, **{name: answer[1][name] for name in ("lhs", "rhs", "lease")}}}
    coordinator.wait_shared(10)


def test_shared_state_is_stored_after_last_bucket(coordinator, shared):
    train_all(coordinator)
    for rank in (0, 1):
        coordinator.answer(rank, "leave", {})
    coordinator.wait_shared(10)
    assert shared == [1, 2]


def test_shared_state_is_not_stored_for_version(coordinator, shared):
    """It may differ from the state that a resumed commit begins with."""
    train_all(coordinator)
    for partition in range(PARTITIONS):
        coordinator.answer(0, "stored", stored(partition, lease=PARTITIONS**2))
    with pytest.raises(StorageError):  # those partitions are nowhere
        coordinator.settle(lambda: shared.append("drawn"))
    coordinator.answer(0, "leave", {})
    coordinator.wait_shared(10)
    assert shared == [1, 2, "drawn", 3]


class Slow:
    """Store of shared state that waits for permission.

    Its result is named by the store's number.
    """

    def __init__(self):
        self.begun, self.let = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, number):
        self.begun.release()
        assert self.let.acquire(timeout=10)
        return {
            "model.v1.h5": StoredObject(name=f"partial/shared.{number}", record=ObjectRecord(sha256="0" * 64, size=0))
        }


def named(writer):
    return [stored.name for stored in writer.progress.shared.values()]


def test_ranks_are_answered_during_store_of_shared_state(tmp_path, monkeypatch):
    monkeypatch.setattr(desk_module, "ANSWER_SECONDS", 1.0)
    share = Slow()
    with coordinated(tmp_path, share) as (coordinator, writer), linked(coordinator.serve, 1, server=0) as (connection,):
        client = CoordinatorClient.remote(connection, lambda: None)
        grant = client.next(1, None)
        assert share.begun.acquire(timeout=10)
        edge_chunk = EdgeChunkRecord(lhs=grant.lhs, rhs=grant.rhs, rank=1, lease=grant.lease, edges=54)
        assert client.next(1, Report(edge_chunk=edge_chunk)) is not None
        assert [lease.lease for lease in writer.progress.active] == [grant.lease, grant.lease + 1]
        assert named(writer) == []  # a record names stored objects, and nothing else
        share.let.release()
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.1"]


def test_ending_gang_repeats_unfinished_store(tmp_path):
    share = Slow()
    with coordinated(tmp_path, share) as (coordinator, writer):
        coordinator.answer(0, "next", {"iteration": 1})
        assert share.begun.acquire(timeout=10)
        for rank in (1, 0):
            assert coordinator.answer(rank, "leave", {})[0] == "ok"
        share.let.release(2)
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.2"]


def busy(at):
    """Store the shared state, except at the store of this number."""

    def share(number):
        if number == at:
            raise StorageError("busy")
        return {
            "model.v1.h5": StoredObject(name=f"partial/shared.{number}", record=ObjectRecord(sha256="0" * 64, size=0))
        }

    return share


@pytest.mark.parametrize("left", [False, True], ids=["nobody has left", "a rank has left before"])
def test_shared_state_is_stored_after_failed_commit(tmp_path, left):
    store = busy(2)

    def share(number):
        if left and number == 2:
            coordinator.answer(1, "leave", {})
        return store(number)

    with coordinated(tmp_path, share) as (coordinator, writer):
        train_all(coordinator)
        with pytest.raises(StorageError, match="busy"):
            coordinator.settle()
        coordinator.answer(0, "leave", {})
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.3"]


def test_report_of_rank_counts_despite_failed_store(tmp_path):
    with (
        coordinated(tmp_path, busy(1)) as (coordinator, writer),
        linked(coordinator.serve, 1, server=0) as (connection,),
    ):
        client = CoordinatorClient.remote(connection, lambda: None)
        grant = client.next(1, None)
        coordinator.wait_shared(10)
        report = Report(edge_chunk=EdgeChunkRecord(lhs=grant.lhs, rhs=grant.rhs, rank=1, lease=grant.lease, edges=54))
        with pytest.raises(StorageError, match="busy"):
            client.next(1, report)
        for partition in {grant.lhs, grant.rhs}:  # by its server, in the background of the training
            coordinator.answer(0, "stored", stored(partition, lease=grant.lease))
        client.leave(report)
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.2"]
        assert [edge_chunk.lease for edge_chunk in writer.progress.done] == [grant.lease]
        assert writer.progress.active == ()


def test_rank_leaves_with_report_despite_unrecorded_lease(tmp_path, monkeypatch):
    with coordinated(tmp_path, busy(0)) as (coordinator, writer):
        _, grant = coordinator.answer(0, "next", {"iteration": 1})
        coordinator.wait_shared(10)
        report = {
            "edge_chunk": {"lhs": grant["lhs"], "rhs": grant["rhs"], "rank": 0, "lease": grant["lease"], "edges": 54}
        }

        def refuse(_):
            raise StorageError("away")

        with monkeypatch.context() as patch:
            patch.setattr(writer, "record", refuse)
            with pytest.raises(StorageError, match="away"):
                coordinator.answer(0, "next", {"iteration": 1, "report": report})
        assert coordinator.answer(0, "leave", {"report": report})[0] == "ok"
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.2"]
        assert [edge_chunk.edges for edge_chunk in coordinator.state.done] == [54]


def test_leaving_ranks_are_recorded_after_failed_store(tmp_path):
    with coordinated(tmp_path, busy(1)) as (coordinator, writer):
        coordinator.answer(0, "next", {"iteration": 1})
        coordinator.wait_shared(10)
        with pytest.raises(StorageError, match="busy"):
            coordinator.answer(1, "next", {"iteration": 1})
        assert coordinator.answer(1, "leave", {})[0] == "ok"
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.2"]


def test_failure_to_store_shared_state_reaches_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)

    def diverged(number):
        raise TrainingDivergedError(f"store {number}")

    with coordinated(tmp_path, diverged) as (coordinator, _):
        coordinator.answer(0, "next", {"iteration": 1})
        coordinator.wait_shared(10)
        with pytest.raises(TrainingDivergedError, match="store 1"):
            coordinator.answer(1, "next", {"iteration": 1})
