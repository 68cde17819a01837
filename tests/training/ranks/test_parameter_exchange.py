"""Exchange of shared parameters between ranks.

Numbers here are small integers where sums have to be right to the last bit: float32 adds those without rounding.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.errors import ConflictError, RankLostError
from pbg_tasks.training.ranks.parameters import plan as parameter_plan
from pbg_tasks.training.ranks.parameters.exchange import ParameterExchange
from pbg_tasks.training.ranks.parameters.plan import SEGMENT
from pbg_tasks.training.ranks.parameters.server import ParameterServer
from pbg_tasks.training.ranks.parameters.step_lock import StepLock
from tests.training.ranks.links import linked

PATIENCE = 20  # seconds; only a defect takes so long
SHAPES = {"diagonal": (5,), "stacked": (3, 2, 2), "emb/user": (20, 3), "rows/user": (20,)}


@contextmanager
def small_shards():
    """Use shards so small that a few numbers make many of them.

    They have several segments.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter_plan, "SHARD", 16)
        patch.setattr(parameter_plan, "SEGMENT", 3)
        patch.setattr(parameter_plan, "_SMALL", 32)
        yield


class Rank(NamedTuple):
    tensors: dict[str, torch.Tensor]
    exchange: ParameterExchange
    step_lock: StepLock


def unexpected(error):
    raise AssertionError from error


def new_rank(servers, shapes=SHAPES, workers=1, **options):
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    step_lock = StepLock(workers)
    options = {"on_error": unexpected, **options}
    return Rank(tensors, ParameterExchange(tensors, servers, step_lock, **options), step_lock)


def gang(servers, **options):
    """As many ranks as servers, after their start."""
    ranks = [new_rank(servers, **options) for _ in servers]
    for number, tensor in enumerate(ranks[0].tensors.values()):
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) + 100 * number)
    ranks[0].exchange.seed()
    for rank in ranks:
        rank.exchange.pull()
    return ranks


def end_iteration(ranks):
    for rank in ranks:
        rank.exchange.flush()
    for rank in ranks:
        rank.exchange.pull()


def copies(rank):
    return {name: tensor.clone() for name, tensor in rank.tensors.items()}


def assert_equal(rank, wanted):
    for name, tensor in rank.tensors.items():
        assert torch.equal(tensor, wanted[name]), name


def test_all_ranks_start_with_numbers_of_rank_zero():
    ranks = gang([ParameterServer() for _ in range(3)])
    assert ranks[0].tensors["stacked"].sum() > 0
    for rank in ranks:
        assert_equal(rank, ranks[0].tensors)


class Meanwhile:
    """Events while a rank waits for the answer to its next swap.

    Attributes:
        before: called before the swap is done.
        after: called after it, before the answer arrives.
    """

    def __init__(self):
        self.before, self.after = [], []


class BusyServer(ParameterServer):
    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    def swap(self, *args):
        before, self.meanwhile.before = self.meanwhile.before, []
        after, self.meanwhile.after = self.meanwhile.after, []
        for act in before:
            act()
        update = super().swap(*args)
        for act in after:
            act()
        return update


# small enough for several ranks to meet at the same numbers often
FEW = {"a": (5,), "b": (4, 5)}
train = st.tuples(st.just("train"), st.integers(0, 2), st.sampled_from("ab"), st.sampled_from([0, 1, 4, 19]))
swap = st.tuples(st.just("swap"), st.integers(0, 2), st.integers(0, 1))
inner = st.lists(st.one_of(train, swap), max_size=6)


@given(actions=st.lists(st.one_of(train, st.tuples(swap, inner, inner)), max_size=20))
def test_changes_in_any_order_count_exactly_once(actions):
    meanwhile = Meanwhile()
    with small_shards():
        ranks = gang([BusyServer(meanwhile) for _ in range(3)], shapes=FEW)
    wanted = copies(ranks[0])
    amounts = itertools.count(1)

    def act(action):
        kind, rank, *where = action
        if kind == "train":
            name, place = where
            amount = next(amounts)
            for tensors in (ranks[rank].tensors, wanted):
                tensors[name].view(-1)[place % wanted[name].numel()] += amount
        else:
            ranks[rank].exchange._replicas[where[0]].swap()

    def hooks(asker, inner):
        # a rank has one swapping thread, so meanwhile only others swap
        return [partial(act, action) for action in inner if action[0] == "train" or action[1] != asker]

    for action in actions:
        if action[0] == "train":
            act(action)
        else:
            asked, before, after = action
            meanwhile.before, meanwhile.after = hooks(asked[1], before), hooks(asked[1], after)
            act(asked)
    end_iteration(ranks)
    for rank in ranks:
        assert_equal(rank, wanted)


def train_hard(rank, worker, workers, *, swaps):
    """Add 1 to this worker's share of all numbers, slowly.

    Other threads get in between. Returns the number of additions.
    """
    shares = [tensor.view(-1)[worker::workers] for tensor in rank.tensors.values()]
    deadline = time.monotonic() + PATIENCE
    steps = 0
    while rank.exchange.swaps < swaps:
        assert time.monotonic() < deadline
        with rank.step_lock.step():
            stepped = [share + 1 for share in shares]
            time.sleep(0.0002)
            for share, values in zip(shares, stepped, strict=True):
                share.copy_(values)
        steps += 1
    return steps


def train_side_by_side(ranks, workers, *, swaps):
    """Train with exchange to the end of an iteration.

    Returns the expected sum.
    """
    wanted = copies(ranks[0])
    for rank in ranks:
        rank.exchange.resume()
    with ThreadPoolExecutor(len(ranks) * workers) as threads:
        jobs = [
            (worker, threads.submit(train_hard, rank, worker, workers, swaps=swaps))
            for rank in ranks
            for worker in range(workers)
        ]
        for worker, steps in jobs:
            for tensor in wanted.values():
                tensor.view(-1)[worker::workers] += steps.result()
    end_iteration(ranks)
    return wanted


def test_hogwild_workers_lose_no_change():
    with small_shards():
        ranks = gang([ParameterServer() for _ in range(3)], interval=0.0, workers=2)
    wanted = train_side_by_side(ranks, 2, swaps=100)
    for rank in ranks:
        assert_equal(rank, wanted)


def test_any_numbers_end_with_equal_bits_everywhere():
    ranks = gang([ParameterServer(), ParameterServer()], shapes={"a": (3000,), "b": (40, 50)})
    wanted = {name: tensor.double() for name, tensor in copies(ranks[0]).items()}
    generator = torch.Generator().manual_seed(5)
    for turn in range(30):
        for rank in ranks:
            for name, tensor in rank.tensors.items():
                change = torch.randn(tensor.shape, generator=generator) * 10.0 ** (turn % 7 - 3)
                tensor.add_(change)
                wanted[name] += change.double()
        ranks[turn % 2].exchange._each(ranks[turn % 2].exchange._swap)
    end_iteration(ranks)
    for rank in ranks:
        assert_equal(rank, ranks[0].tensors)
        for name, tensor in rank.tensors.items():
            assert (tensor.double() - wanted[name]).abs().max() < 0.02


def test_only_changed_segments_are_transferred():
    servers = [ParameterServer(), ParameterServer()]
    ranks = gang(servers, shapes={"emb/user": (300, 100)})

    def moved(rank):
        return sum(replica.swap() for replica in rank.exchange._replicas)

    assert [moved(rank) for rank in ranks] == [0, 0]
    ranks[0].tensors["emb/user"][7, 7] += 1
    # no other rank has changed the numbers of rank 0: it needs no sum in return
    assert [moved(ranks[0]), moved(ranks[1]), moved(ranks[0]), moved(ranks[1])] == [4 * SEGMENT, 4 * SEGMENT, 0, 0]
    for rank in ranks:
        rank.tensors["emb/user"][7, 7] += 1
    assert [moved(ranks[0]), moved(ranks[1]), moved(ranks[0])] == [4 * SEGMENT, 8 * SEGMENT, 4 * SEGMENT]
    assert ranks[0].tensors["emb/user"][7, 7] == 707 + 3


def test_rounding_differences_stop_being_exchanged():
    ranks = gang([ParameterServer()] * 2, shapes={"a": (1000,)})
    generator = torch.Generator().manual_seed(1)
    for rank in ranks:
        rank.tensors["a"].mul_(torch.randn(1000, generator=generator))
    moved = [replica.swap() for _ in range(6) for rank in ranks for replica in rank.exchange._replicas]
    assert moved[0] > 0
    assert moved[-4:] == [0, 0, 0, 0]
    assert torch.equal(ranks[0].tensors["a"], ranks[1].tensors["a"])


def test_second_start_replaces_everything():
    ranks = gang([ParameterServer(), ParameterServer()])
    ranks[1].tensors["diagonal"] += 5
    end_iteration(ranks)
    ranks[0].tensors["diagonal"].fill_(42)
    ranks[0].exchange.seed()
    for rank in ranks:
        rank.exchange.pull()
        assert rank.tensors["diagonal"].tolist() == [42] * 5


def test_exchange_works_over_the_network():
    remote = ParameterServer()
    shapes = {"a": (2000,), "b": (3, 4), "c": (5,), "d": (70, 30)}
    with linked(remote.serve, 0, 1) as (first, second):
        local = ParameterServer()
        ranks = [new_rank([connection, local], shapes) for connection in (first, second)]
        for tensor in ranks[0].tensors.values():
            tensor.fill_(1)
        ranks[0].exchange.seed()
        ranks[1].exchange.pull()
        ranks[0].exchange.pull()
        wanted = train_side_by_side(ranks, 1, swaps=20)
        for rank in ranks:
            assert_equal(rank, wanted)
            traffic = rank.exchange.traffic
            assert traffic.requests > 0
            assert traffic.bytes > 0
            assert traffic.seconds > 0
            assert traffic.requests < rank.exchange.swaps  # the server of this process needs no connection


def test_only_rank_zero_starts():
    with linked(ParameterServer().serve, 1) as (connection,):
        rank = new_rank([connection])
        with pytest.raises(ConflictError, match="rank 1 sent 'seed', which is not its part"):
            rank.exchange.seed()


def test_ranks_wait_for_start_of_rank_zero():
    rank = new_rank([ParameterServer()])
    with pytest.raises(ConflictError, match="began before rank 0 had set them"):
        rank.exchange.pull()


def test_rank_with_other_model_is_refused():
    server = ParameterServer()
    first, second = new_rank([server]), new_rank([server], {"a": (4000,)})
    first.exchange.seed()
    with pytest.raises(ConflictError, match="do not train the same model"):
        second.exchange.pull()


def test_swap_without_answer_is_reported_and_not_repeated():
    asked, told = [], threading.Event()
    errors = []

    def deaf(connection):
        while True:
            message = connection.receive(timeout=None)
            asked.append(message.kind)
            if message.kind == "swap":
                return  # which ends the connection
            connection.send("ok")

    def on_error(error):
        errors.append(error)
        told.set()

    with linked(deaf, 0) as (connection,):
        rank = new_rank([connection], on_error=on_error)
        rank.exchange.seed()
        rank.exchange.resume()
        assert told.wait(PATIENCE)
        for act in (rank.exchange.flush, rank.exchange.pull, rank.exchange.seed):
            with pytest.raises(RankLostError, match="rank 9 closed the connection"):
                act()
        rank.exchange.close()
    assert [type(error) for error in errors] == [RankLostError]
    assert asked.count("swap") == 1


def test_exchange_stays_within_the_bandwidth():
    ranks = gang([ParameterServer()], shapes={"a": (1000, 250)}, bandwidth=5e6, interval=0.0)
    exchange, tensor = ranks[0].exchange, ranks[0].tensors["a"]
    before, started = exchange.swaps, time.monotonic()
    exchange.resume()
    while exchange.swaps < before + 3:
        with ranks[0].step_lock.step():
            tensor += 1
        time.sleep(0.005)
    exchange.close()
    assert time.monotonic() - started >= 2 * tensor.nbytes / 5e6


def test_number_is_exchanged_once_an_interval():
    ranks = gang([ParameterServer()], interval=0.1)
    exchange = ranks[0].exchange
    before, started = exchange.swaps, time.monotonic()
    exchange.resume()
    while exchange.swaps < before + 3:
        time.sleep(0.005)
    exchange.close()
    assert time.monotonic() - started >= 2 * 0.1


def test_closed_exchange_swaps_nothing():
    ranks = gang([ParameterServer()], interval=0.0)
    ranks[0].exchange.resume()
    ranks[0].exchange.close()
    swaps = ranks[0].exchange.swaps
    time.sleep(0.05)
    assert ranks[0].exchange.swaps == swaps
