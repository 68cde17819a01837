from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.training.ranks.parameters.plan import SEGMENT, SHARD, Extent, Shard, plan_shards

SMALL = 2_500_000  # numbers in PBG's 10 MB


@given(
    sizes=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(0, 5000), st.integers(0, 4 * SMALL)), max_size=30),
    servers=st.integers(1, 9),
)
def test_every_number_is_in_exactly_one_shard(sizes, servers):
    found = {name: [] for name in sizes}
    for shard in plan_shards(sizes, servers):
        assert 0 <= shard.server < servers
        assert 0 < sum(stop - start for _, start, stop in shard.extents) <= SHARD
        for name, start, stop in shard.extents:
            found[name].append((start, stop))
    for name, size in sizes.items():
        pieces = sorted(found[name])
        ends = [0, *(stop for _, stop in pieces)]
        assert [start for start, _ in pieces] == ends[:-1]
        assert ends[-1] == size
        assert all(stop > start for start, stop in pieces)


def test_small_parameter_has_one_server_large_all():
    shards = plan_shards({"small": SMALL, "large": SMALL + 1}, 4)
    servers = {
        name: Counter(shard.server for shard in shards for extent in shard.extents if extent.name == name)
        for name in ("small", "large")
    }
    assert len(servers["small"]) == 1
    assert len(servers["large"]) == 4
    assert max(servers["large"].values()) - min(servers["large"].values()) <= 1


def test_many_small_parameters_are_spread_and_share_shards():
    shards = plan_shards({f"relations/{number}/operator/rhs/real": 400 for number in range(1000)}, 4)
    assert Counter(shard.server for shard in shards) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert min(len(shard.extents) for shard in shards) > 200


def test_plan_is_the_same_in_every_process():
    # literals: with Python's hash of strings, which differs from process to process, they would not hold
    assert plan_shards({"a": 3, "b": 4, "c": 5, "d": 6}, 3) == [
        Shard(1, (Extent("a", 0, 3), Extent("b", 0, 4))),
        Shard(2, (Extent("c", 0, 5), Extent("d", 0, 6))),
    ]


def test_segments_are_within_extents():
    shard = Shard(0, (Extent("a", 0, SEGMENT), Extent("b", 10, 2 * SEGMENT + 15), Extent("c", 7, 8)))
    assert shard.lengths().tolist() == [SEGMENT, SEGMENT, SEGMENT, 5, 1]


sizes_of_two = st.dictionaries(st.sampled_from("ab"), st.integers(1, 2), min_size=1)


@given(one=sizes_of_two, other=sizes_of_two)
def test_shard_of_other_parameters_has_another_key(one, other):
    (first,), (second,) = plan_shards(one, 1), plan_shards(other, 1)
    assert (first.key == second.key) == (one == other)
