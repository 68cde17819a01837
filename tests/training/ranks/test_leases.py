"""Leases of buckets, and reservations of the next ones.

The file is longer than others: two state machines drive one book, with the checks that all cases share.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pbg_tasks.training.data.partitions import PartitionKey, partition_keys
from pbg_tasks.training.ranks.leases import LeaseBook, useful_ranks
from pbg_tasks.training.schedule import Bucket, grid
from tests.training.buffers import make_config

RANKS = range(4)


def one_type(count):
    return make_config({"n": count}, [("n", "n")])


def buckets_of(config):
    return grid(config.partitions("lhs"), config.partitions("rhs"))


def even(config):
    return dict.fromkeys(partition_keys(config), 10)


def book_of(config, **arguments):
    return LeaseBook(config, even(config), buckets_of(config), **{"tree": False} | arguments)


# The behaviour of PBG's lock server, from its description: partitioned types of either side, by name.
def types_of(config, side):
    names = {getattr(relation, side) for relation in config.relations}
    return sorted(name for name in names if config.entities[name].num_partitions > 1)


def sides_of(config, bucket):
    return tuple({PartitionKey(name, bucket[at]) for name in types_of(config, ("lhs", "rhs")[at])} for at in (0, 1))


def keys_of(config, bucket):
    return set.union(*sides_of(config, bucket))


def pbg_choice(config, counts, todo, active, started, old):
    """Return the bucket that PBG leases.

    ``started`` are the partitions counted as initialised, None without the tree rule.
    """
    locked = {key for bucket in active for key in keys_of(config, bucket)}
    free = [bucket for bucket in todo if not keys_of(config, bucket) & locked]
    if started:
        free = [bucket for bucket in free if any(side <= started for side in sides_of(config, bucket))]

    def cost(bucket):
        changed = keys_of(config, bucket) ^ (keys_of(config, old) if old else set())
        return sum(mean_count(counts, key.entity) for key in changed)

    return min(free, key=cost, default=None)


def mean_count(counts, entity):
    listed = [count for key, count in counts.items() if key.entity == entity]
    return round(sum(listed) / len(listed))


@st.composite
def configs(draw):
    lhs_count, rhs_count = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    types = {"a": lhs_count, "b": lhs_count, "u": 1, "v": rhs_count, "w": rhs_count}
    lhs, rhs = draw(st.sampled_from([("abu", "vwu"), ("ab", "abu"), ("a", "a"), ("a", "v")]))
    ends = draw(st.lists(st.tuples(st.sampled_from(lhs), st.sampled_from(rhs)), min_size=1, max_size=4, unique=True))
    return make_config({name: types[name] for name in sorted({name for end in ends for name in end})}, ends)


class Gang(RuleBasedStateMachine):
    """Ranks that come and go at random, and their book's rules."""

    @initialize(config=configs(), tree=st.booleans(), shuffled=st.booleans(), rnd=st.randoms(use_true_random=False))
    def begin(self, config, tree, shuffled, rnd):
        self.config, self.tree = config, tree
        self.buckets = buckets_of(config)
        if shuffled:
            rnd.shuffle(self.buckets)
        self.counts = {key: rnd.randint(1, 30) for key in partition_keys(config)}
        self.done, self.old, self.number = Counter(), {}, 7
        self.book = LeaseBook(config, self.counts, self.buckets, tree=tree, first_number=7)

    @rule(rank=st.sampled_from(RANKS))
    def acquire(self, rank):
        if rank in self.book.active:
            return
        active = {lease.bucket for lease in self.book.active.values()}
        todo = [bucket for bucket in self.buckets if bucket not in active and bucket not in self.done]
        started = {key for bucket in (*active, *self.done) for key in keys_of(self.config, bucket)}
        old = self.old.get(rank)
        expected = pbg_choice(self.config, self.counts, todo, active, started if self.tree else None, old)
        lease = self.book.acquire(rank, old)
        assert (None if lease is None else lease.bucket) == expected
        assert lease is not None or active or not todo  # no deadlock: every rank of an idle gang gets a bucket
        if lease is not None:
            assert (lease.rank, lease.number) == (rank, self.number)
            assert lease.keys == keys_of(self.config, lease.bucket)
            self.number += 1

    @rule(rank=st.sampled_from(RANKS), keeps=st.booleans())
    def release(self, rank, keeps):
        if rank in self.book.active:
            expected = self.book.active[rank]
            assert self.book.release(rank) == expected
            self.done[expected.bucket] += 1
            self.old[rank] = expected.bucket if keeps else None

    @rule(rank=st.sampled_from(RANKS))
    def give_back(self, rank):
        if rank in self.book.active:
            expected = self.book.active[rank]
            assert self.book.give_back(rank) == expected
            self.old[rank] = None

    @rule()
    @precondition(lambda self: self.done)
    def gang_is_replaced(self):
        self.book = LeaseBook(
            self.config, self.counts, self.buckets, done=set(self.done), tree=self.tree, first_number=self.number
        )
        self.old = {}

    @invariant()
    def leases_are_disjoint(self):
        if hasattr(self, "book"):
            keys = Counter(key for lease in self.book.active.values() for key in lease.keys)
            assert all(count == 1 for count in keys.values())
            assert self.book.left == len(self.buckets) - len(self.done)
            assert self.book.finished == (self.book.left == 0)

    def teardown(self):
        if not hasattr(self, "book"):
            return
        for rank in list(self.book.active):
            self.release(rank, keeps=True)
        while not self.book.finished:
            self.acquire(0)
            self.release(0, keeps=True)
        assert self.done == Counter(self.buckets)


TestGang = Gang.TestCase
TestGang.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class GangAhead(RuleBasedStateMachine):
    """Ranks that reserve buckets and put partitions away behind their training."""

    @initialize(config=configs(), tree=st.booleans(), rnd=st.randoms(use_true_random=False))
    def begin(self, config, tree, rnd):
        self.config, self.tree, self.buckets = config, tree, buckets_of(config)
        rnd.shuffle(self.buckets)
        self.done, self.old, self.underway, self.last = Counter(), {}, {}, set()
        self.book = book_of(config, tree=tree)

    def locked(self, *, but=None):
        """Return the partitions of all ranks other than ``but``."""
        leases = (*self.book.active.values(), *self.underway.values())
        return {key for lease in leases if lease.rank != but for key in lease.keys}

    @rule(rank=st.sampled_from(RANKS))
    def acquire(self, rank):
        if rank in self.book.active:
            return
        reserved, busy = self.book.reserved.get(rank), [each.bucket for each in self.book.active.values()]
        todo = [bucket for bucket in self.buckets if bucket not in busy and bucket not in self.done]
        busy += [each.bucket for each in self.underway.values()]
        trained = {key for bucket in self.done for key in keys_of(self.config, bucket)}
        started = trained | {key for bucket in busy for key in keys_of(self.config, bucket)}
        possible = pbg_choice(self.config, even(self.config), todo, busy, started if self.tree else None, None)
        before = self.locked(but=rank)
        lease = self.book.acquire(rank, self.old.get(rank))
        if lease is None:
            assert reserved is None
            assert possible is None, "a rank waits for another's reservation"
            return
        assert reserved in {None, lease.bucket}
        assert lease.bucket in todo
        assert not lease.keys & before
        assert not lease.keys & self.last, "a partition is trained after its last bucket"
        self.last |= lease.last
        if self.tree and started:
            assert any(side <= trained for side in sides_of(self.config, lease.bucket))

    @rule(rank=st.sampled_from(RANKS))
    def reserve(self, rank):
        if rank in self.book.active:
            bucket = self.book.reserve(rank)
            assert bucket == self.book.reserved.get(rank) == self.book.reserve(rank)

    @rule(rank=st.sampled_from(RANKS), underway=st.booleans())
    def release(self, rank, underway):
        if rank in self.book.active and not any(lease.rank == rank for lease in self.underway.values()):
            lease = self.book.release(rank, underway=underway)
            self.done[lease.bucket] += 1
            self.old[rank] = lease.bucket
            if underway:
                self.underway[lease.number] = lease

    @rule(choice=st.integers(0, 3))
    def put_away(self, choice):
        if self.underway:
            number = sorted(self.underway)[choice % len(self.underway)]
            self.book.put_away(number)
            del self.underway[number]

    @rule(rank=st.sampled_from(RANKS))
    def give_back(self, rank):
        if rank in self.book.active:
            self.last -= self.book.give_back(rank).last
            self.old[rank] = None
            assert rank not in self.book.reserved

    @invariant()
    def partitions_have_one_rank(self):
        if hasattr(self, "book"):
            ranks = {}
            for lease in (*self.book.active.values(), *self.underway.values()):
                for key in lease.keys:
                    assert ranks.setdefault(key, lease.rank) == lease.rank
            unleased = Counter()
            for rank, bucket in self.book.reserved.items():
                own = self.book.active[rank].keys if rank in self.book.active else set()
                own |= {key for lease in self.underway.values() if lease.rank == rank for key in lease.keys}
                keys = keys_of(self.config, bucket)
                assert not keys & self.locked(but=rank)
                unleased.update(keys - own)
            assert all(count == 1 for count in unleased.values())
            assert self.book.finished == (not self.book.left and not self.underway)

    def teardown(self):
        if not hasattr(self, "book"):
            return
        for rank in RANKS:
            self.release(rank, underway=False)
        while self.underway:
            self.put_away(0)
        while not self.book.finished:
            for rank in RANKS:
                self.acquire(rank)
                self.reserve(rank)
            for rank in RANKS:
                self.release(rank, underway=True)
            while self.underway:
                self.put_away(0)
        assert self.done == Counter(self.buckets)


TestGangAhead = GangAhead.TestCase
TestGangAhead.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@given(configs(), st.data())
@settings(max_examples=60, deadline=None)
def test_idle_gang_gets_bucket_after_any_past(config, data):
    """Start also with partitions that no bucket of this rule left alone.

    A crash between two stores leaves such.
    """
    buckets = buckets_of(config)
    trained = data.draw(st.sets(st.sampled_from(partition_keys(config))))
    done = data.draw(st.sets(st.sampled_from(buckets)))
    assume(len(done) < len(buckets))
    book = book_of(config, tree=True, trained=trained, done=done)
    while not book.finished:
        assert book.acquire(0, None) is not None
        book.release(0)


def test_trained_partitions_let_tree_grow_at_once():
    config = one_type(6)
    cold = book_of(config, tree=True)
    assert cold.acquire(0, None).bucket == Bucket(0, 0)
    assert cold.acquire(1, None) is None  # no other bucket is connected with the trained partitions
    warm = book_of(config, tree=True, trained=[PartitionKey("n", 0), PartitionKey("n", 4)])
    assert [warm.acquire(rank, None).bucket for rank in (0, 1)] == [Bucket(0, 0), Bucket(4, 4)]


def test_returned_first_lease_leaves_nothing_trained():
    book = book_of(one_type(4), tree=True)
    book.acquire(0, None)
    book.give_back(0)
    assert book.acquire(1, Bucket(2, 3)).bucket == Bucket(2, 3)


def test_rank_continues_with_partitions_in_memory():
    """Follow PBG's walk from (0, 0).

    One partition stays, and a transpose needs no transfer at all.
    """
    book, old, walk = book_of(one_type(3)), None, []
    while not book.finished:
        old = book.acquire(0, old).bucket
        walk.append(tuple(old))
        book.release(0)
    assert walk == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (0, 2), (2, 0)]


def test_types_count_by_their_mean_size():
    """Keeping the larger type's partition saves more, whatever its own size."""
    config = make_config({"big": 2, "small": 2}, [("big", "small")])
    counts = {PartitionKey("big", 0): 1, PartitionKey("big", 1): 99}
    counts |= {PartitionKey("small", part): 20 for part in (0, 1)}
    book = LeaseBook(config, counts, buckets_of(config), done=[Bucket(0, 0)], tree=False)
    assert book.acquire(0, Bucket(0, 0)).bucket == Bucket(0, 1)


def test_rank_with_lease_gets_no_second():
    book = book_of(one_type(4))
    book.acquire(0, None)
    with pytest.raises(RuntimeError, match=r"rank 0 asks .* a bug"):
        book.acquire(0, None)
    with pytest.raises(KeyError):
        book.release(1)


def test_finished_iteration_is_finished():
    config = one_type(2)
    book = book_of(config, done=buckets_of(config), tree=True)
    assert book.finished
    assert book.acquire(0, None) is None


@pytest.mark.parametrize(
    ("partitions", "ends", "expected"),
    [
        ({"n": 1}, [("n", "n")], 1),
        ({"n": 2}, [("n", "n")], 1),
        ({"n": 9}, [("n", "n")], 4),
        ({"a": 8, "b": 3}, [("a", "b")], 3),
        ({"a": 8, "b": 1}, [("a", "b")], 8),
        ({"a": 8, "b": 8, "u": 1}, [("a", "b"), ("a", "u")], 8),
        ({"a": 8, "b": 8}, [("a", "b"), ("b", "b")], 4),
    ],
)
def test_promised_number_of_ranks_works_at_once(partitions, ends, expected):
    """Try any choice of buckets, except small ones.

    Buckets such as a type's (0, 0), (1, 1) need fewer partitions than most.
    """
    config = make_config(partitions, ends)
    assert useful_ranks(config) == expected
    buckets = buckets_of(config)
    most = max(len(keys_of(config, bucket)) for bucket in buckets)
    buckets = [bucket for bucket in buckets if len(keys_of(config, bucket)) == most]
    random.Random(0).shuffle(buckets)
    book = LeaseBook(config, even(config), buckets, tree=False)
    assert len([rank for rank in range(20) if book.acquire(rank, None) is not None]) == expected


@pytest.mark.parametrize(
    ("partitions", "ends"), [({"n": 5}, [("n", "n")]), ({"u": 4, "i": 6, "k": 1}, [("u", "i"), ("u", "k")])]
)
def test_last_lease_of_partition_is_marked(partitions, ends):
    config = make_config(partitions, ends)
    chance = random.Random(3)
    book, last = book_of(config), {}
    while not book.finished:
        for rank in RANKS:
            if rank not in book.active:
                book.acquire(rank, None)
        rank = chance.choice(sorted(book.active))
        if chance.random() < 0.3:
            book.give_back(rank)
            continue
        lease = book.release(rank)
        assert not lease.keys & last.keys(), "a partition is trained after its last bucket"
        last |= dict.fromkeys(lease.last, lease.bucket)
    assert set(last) == {key for key in partition_keys(config) if config.entities[key.entity].num_partitions > 1}


def test_reserved_bucket_keeps_partitions_and_is_leased_next():
    book = book_of(one_type(4))
    lease = book.acquire(0, None)
    assert lease.bucket == Bucket(0, 0)
    assert book.reserve(0) == Bucket(0, 1)
    other = book.acquire(1, None)
    assert other.bucket == Bucket(2, 2)  # (1, 1) would be first, but rank 0 reads partition 1
    assert book.reserve(1) == Bucket(2, 3)
    book.release(0, underway=True)
    following = book.acquire(0, lease.bucket)
    assert (following.bucket, following.number) == (Bucket(0, 1), 3)  # partition 0 is its own, though not put away
    book.put_away(lease.number)
    with pytest.raises(KeyError):
        book.put_away(lease.number)


def test_rank_without_bucket_takes_reserved_partitions():
    book = book_of(one_type(3))
    book.acquire(0, None)
    assert book.reserve(0) == Bucket(0, 1)
    assert book.acquire(1, None).bucket == Bucket(2, 2)
    book.release(1)
    assert book.reserve(0) == Bucket(0, 1)
    assert book.acquire(1, Bucket(1, 2)).bucket == Bucket(1, 2)  # nothing else is left beside partition 0
    assert book.reserved == {}
    assert book.reserve(0) is None
    book.release(0)
    assert book.acquire(0, Bucket(0, 0)) is None


def test_reservation_follows_tree_of_initialisation():
    """Count a rank's own partitions as trained, as they will be then."""
    book = book_of(one_type(4), tree=True)
    book.acquire(0, None)
    assert book.reserve(0) == Bucket(0, 1)
    assert book.acquire(1, None) is None
    book.release(0, underway=True)
    assert book.acquire(1, None) is None  # what is trained is not put away yet
    assert book.acquire(0, Bucket(0, 0)).bucket == Bucket(0, 1)
