"""What rank 0 answers, without the ranks."""

from __future__ import annotations

import pytest

from pbg_tasks.checkpoint import claim
from pbg_tasks.errors import ConflictError, RankLostError
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.train.course import Course
from pbg_tasks.train.edge_files import FiledEdges
from pbg_tasks.train.partitions import partition_keys
from pbg_tasks.train.ranks import coordinator as module
from pbg_tasks.train.ranks.coordinator import Coordinator
from pbg_tasks.train.ranks.frames import Message
from pbg_tasks.train.ranks.handshake import Peer
from tests.train.test_loop import ROWS, SPEC, Buckets, make_config

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


@pytest.fixture
def coordinator(tmp_path, shared, monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    config = make_config(num_partition_servers=-1, num_epochs=1)
    course = Course(config, FiledEdges(Buckets(tmp_path / "edges", PARTITIONS)), seed=0)
    with claim(LocalStore(tmp_path / "store"), "", SPEC, patience=0.1) as writer:
        found = Coordinator(
            config,
            dict.fromkeys(partition_keys(config), ROWS),
            writer,
            members=2,
            share=lambda number: shared.append(number) or {},
            share_every=1000.0,
            cold=False,
        )
        found.begin(course.plan[0], course.pieces(course.plan[0], scattered=True), course.order)
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
    report = {"piece": {"lhs": grant["lhs"], "rhs": grant["rhs"], "rank": 1, "lease": grant["lease"], "edges": 54}}
    coordinator.answer(1, "next", {"iteration": 1, "report": report, "give": False})
    assert coordinator.answer(1, "leave", {"report": report})[0] == "ok"
    assert [piece.edges for piece in coordinator.round.done] == [54]


def test_what_all_share_is_stored_once_more_when_the_first_leaves(coordinator, shared):
    for rank in (0, 1):
        coordinator.answer(rank, "next", {"iteration": 1})
    assert len(shared) == 1
    for rank in (0, 1):
        coordinator.answer(rank, "leave", {})
    assert len(shared) == 2
