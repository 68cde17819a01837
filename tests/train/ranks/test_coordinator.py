"""What rank 0 answers, without the ranks."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from pbg_tasks.checkpoint import EdgeChunkRecord, ObjectRecord, StoredObject, claim
from pbg_tasks.errors import ConflictError, RankLostError, StorageError, TrainingDivergedError
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.train.data.edge_files import FiledEdges
from pbg_tasks.train.data.partitions import partition_keys
from pbg_tasks.train.iteration_plan import IterationPlan
from pbg_tasks.train.ranks import coordinator as module
from pbg_tasks.train.ranks import coordinator_client as desk_module
from pbg_tasks.train.ranks.coordinator import Coordinator
from pbg_tasks.train.ranks.coordinator_client import CoordinatorClient
from pbg_tasks.train.ranks.messages import Report
from pbg_tasks.train.ranks.transport.frames import Message
from pbg_tasks.train.ranks.transport.handshake import Peer
from tests.train.buckets import ROWS, SPEC, Buckets, make_config
from tests.train.ranks.links import linked

PARTITIONS = 4


class Gone:
    """The connection of a rank that has gone, perhaps after a question that makes no sense."""

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


@contextmanager
def coordinated(tmp_path, share, share_every=1000.0):
    """A coordinator that has begun the first iteration, and its writer."""
    config = make_config(num_partition_servers=-1, num_epochs=1)
    iteration_plan = IterationPlan(config, FiledEdges(Buckets(tmp_path / "edges", PARTITIONS)), seed=0)
    with claim(LocalStore(tmp_path / "store"), "", SPEC, patience=0.1) as writer:
        found = Coordinator(
            config,
            dict.fromkeys(partition_keys(config), ROWS),
            writer,
            members=2,
            share=share,
            share_every=share_every,
            cold=False,
        )
        found.begin(
            iteration_plan.plan[0],
            iteration_plan.edge_chunks(iteration_plan.plan[0], scattered=True),
            iteration_plan.order,
        )
        yield found, writer
        found.wait_shared(10)


@pytest.fixture
def coordinator(tmp_path, shared, monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    with coordinated(tmp_path, lambda number: shared.append(number) or {}) as (found, _):
        yield found


def test_nobody_goes_on_without_a_rank_that_was_lost_but_to_leave(coordinator):
    coordinator.serve(Gone(1))
    for left, expected in ((False, "wait"), (True, "go")):
        assert coordinator.answer(0, "meet", {"place": "trained 1", "left": left})[0] == expected


def test_a_rank_whose_question_is_refused_is_not_waited_for(coordinator):
    with pytest.raises(ConflictError, match="rank 1 asks 'nonsense'"):
        coordinator.serve(Gone(1, "nonsense"))
    assert coordinator.answer(0, "meet", {"place": "left", "left": True})[0] == "go"


def test_a_report_that_is_handed_in_again_changes_nothing(coordinator):
    _, grant = coordinator.answer(1, "next", {"iteration": 1})
    report = {"edge_chunk": {"lhs": grant["lhs"], "rhs": grant["rhs"], "rank": 1, "lease": grant["lease"], "edges": 54}}
    coordinator.answer(1, "next", {"iteration": 1, "report": report, "give": False})
    assert coordinator.answer(1, "leave", {"report": report})[0] == "ok"
    assert [edge_chunk.edges for edge_chunk in coordinator.state.done] == [54]


def test_what_all_share_is_stored_once_more_when_the_first_leaves(coordinator, shared):
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


def test_what_all_share_is_stored_once_more_though_every_bucket_is_trained(coordinator, shared):
    train_all(coordinator)
    for rank in (0, 1):
        coordinator.answer(rank, "leave", {})
    coordinator.wait_shared(10)
    assert shared == [1, 2]


def test_what_all_share_is_not_stored_once_more_for_a_version(coordinator, shared):
    """It may be another by now than whoever resumes has to begin the commit with."""
    train_all(coordinator)
    for partition in range(PARTITIONS):
        coordinator.answer(0, "stored", stored(partition, lease=PARTITIONS**2))
    with pytest.raises(StorageError):  # those partitions are nowhere
        coordinator.settle(lambda: shared.append("drawn"))
    coordinator.answer(0, "leave", {})
    coordinator.wait_shared(10)
    assert shared == [1, 2, "drawn", 3]


def stored(partition, *, lease):
    """What a partition server says."""
    there = {"name": f"partial/{partition}", "record": {"sha256": "0" * 64, "size": 0}, "lease": lease}
    return {"name": f"embeddings_n_{partition}.v1.h5", "object": there}


class Slow:
    """Stores what all ranks share when it is let, under the name of the store's number."""

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


def test_ranks_are_answered_while_what_all_share_is_being_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(desk_module, "ANSWER_SECONDS", 1.0)
    share = Slow()
    with coordinated(tmp_path, share) as (coordinator, writer), linked(coordinator.serve, 1, server=0) as (connection,):
        client = CoordinatorClient.remote(connection, lambda: None)
        grant = client.next(1, None)
        assert share.begun.acquire(timeout=10)
        edge_chunk = EdgeChunkRecord(lhs=grant.lhs, rhs=grant.rhs, rank=1, lease=grant.lease, edges=54)
        assert client.next(1, Report(edge_chunk=edge_chunk)) is not None
        assert [lease.lease for lease in writer.progress.active] == [grant.lease, grant.lease + 1]
        assert named(writer) == []  # a record names what is stored, and nothing else
        share.let.release()
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.1"]


def test_a_gang_that_ends_stores_once_more_what_was_being_stored(tmp_path):
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
    """Store what all ranks share, but not at the store of this number."""

    def share(number):
        if number == at:
            raise StorageError("busy")
        return {
            "model.v1.h5": StoredObject(name=f"partial/shared.{number}", record=ObjectRecord(sha256="0" * 64, size=0))
        }

    return share


@pytest.mark.parametrize("left", [False, True], ids=["nobody has left", "a rank has left before"])
def test_what_all_share_is_stored_once_more_when_that_failed_before_the_commit(tmp_path, left):
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


def test_the_report_of_a_rank_that_learns_of_a_failed_store_counts(tmp_path):
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
        for partition in {grant.lhs, grant.rhs}:  # by its server, behind the training
            coordinator.answer(0, "stored", stored(partition, lease=grant.lease))
        client.leave(report)
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.2"]
        assert [edge_chunk.lease for edge_chunk in writer.progress.done] == [grant.lease]
        assert writer.progress.active == ()


def test_a_rank_leaves_with_its_report_though_its_next_lease_could_not_be_recorded(tmp_path, monkeypatch):
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


def test_what_ranks_leave_behind_is_recorded_though_the_store_had_failed(tmp_path):
    with coordinated(tmp_path, busy(1)) as (coordinator, writer):
        coordinator.answer(0, "next", {"iteration": 1})
        coordinator.wait_shared(10)
        with pytest.raises(StorageError, match="busy"):
            coordinator.answer(1, "next", {"iteration": 1})
        assert coordinator.answer(1, "leave", {})[0] == "ok"
        coordinator.wait_shared(10)
        assert named(writer) == ["partial/shared.2"]


def test_ranks_learn_why_what_all_share_cannot_be_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)

    def diverged(number):
        raise TrainingDivergedError(f"store {number}")

    with coordinated(tmp_path, diverged) as (coordinator, _):
        coordinator.answer(0, "next", {"iteration": 1})
        coordinator.wait_shared(10)
        with pytest.raises(TrainingDivergedError, match="store 1"):
            coordinator.answer(1, "next", {"iteration": 1})
