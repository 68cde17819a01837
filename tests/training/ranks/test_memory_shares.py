from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.memory.gang import GangPart
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.ranks.memory_shares import device_part, gang_part
from pbg_tasks.training.ranks.partitions.server import owner


def config(*, relations=("n", "n"), **partitions):
    lhs, rhs = relations
    return ModelConfig.model_validate(
        {
            "entities": {name: {"num_partitions": count} for name, count in partitions.items()},
            "relations": [{"name": "r", "lhs": lhs, "rhs": rhs}],
            "dimension": 4,
        }
    )


@pytest.mark.parametrize(
    ("partitions", "how", "part"),
    [
        # Two of a bucket; half of all; two that arrive, and one being stored that was replaced.
        (4, {"rank": 1, "world": 2, "servers": -1}, GangPart({"n": 2}, {"n": 2}, {"n": 3}, 1.5)),
        (16, {"rank": 0, "world": 2, "servers": -1}, GangPart({"n": 2}, {"n": 8}, {"n": 3}, 2.5)),
        (2, {"rank": 1, "world": 2, "servers": -1}, GangPart({"n": 2}, {"n": 1}, {"n": 2}, 1.5)),
        # Through the store: only those of the bucket.
        (16, {"rank": 1, "world": 4, "servers": 0}, GangPart({"n": 2}, {}, {}, 1.25)),
        (16, {"rank": 0, "world": 1, "servers": 0}, GangPart({"n": 2}, {}, {}, 3.0)),
        # Dedicated servers, to each of which four ranks bring four partitions at once.
        (16, {"rank": 3, "world": 4, "servers": 2}, GangPart({"n": 2}, {}, {}, 1.25)),
        (16, {"rank": 5, "world": 4, "servers": 2}, GangPart({}, {"n": 8}, {"n": 5}, 0.0)),
    ],
)
def test_partitions_held_follow_from_place_of_process(partitions, how, part):
    assert gang_part(config(n=partitions), **how) == part


def test_devices_of_process_may_leave_all_partitions():
    """The host keeps those without room on a device, each once."""
    part = device_part(config(n=8, one=1, idle=4), 3)
    assert part == GangPart({"one": 1, "idle": 0}, {"n": 8}, {"n": 7}, 5)


@pytest.mark.parametrize("servers", [0, -1])
def test_partitions_ahead_take_memory_of_two_buckets(servers):
    model = config(relations=("n", "m"), n=6, m=6, one=1, idle=6)
    place = {"rank": 1, "world": 2, "servers": servers}
    assert gang_part(model, **place).ahead == {}
    ahead = gang_part(model.model_copy(update={"partitions_ahead": True}), **place)
    assert ahead.ahead == {"n": 2, "m": 2}
    assert replace(ahead, ahead={}) == gang_part(model, **place)


def test_unpartitioned_types_are_everywhere_unused_ones_elsewhere():
    model = config(relations=("n", "one"), n=6, one=1, alone=1, idle=6)
    part = gang_part(model, rank=1, world=2, servers=-1)
    assert part.trained == {"n": 1, "one": 1, "alone": 1, "idle": 0}
    assert part.served == {"n": 3}
    assert part.passing == {"n": 2}


@pytest.mark.parametrize(("world", "servers"), [(3, -1), (3, 2)])
def test_partitions_are_counted_where_they_are_kept(world, servers):
    keepers = range(world) if servers < 0 else range(world, world + servers)
    kept = [owner(PartitionKey("n", partition), len(keepers)) for partition in range(8)]
    for index, rank in enumerate(keepers):
        assert gang_part(config(n=8), rank=rank, world=world, servers=servers).served == {"n": kept.count(index)}
