"""Memory shares of each process of a gang.

They follow from the way in which ranks exchange partitions and shared parameters. The module works without torch, so
that a plan can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.memory.gang import GangPart
from pbg_tasks.training.data.partitions import Layout

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig


def gang_part(config: ModelConfig, *, rank: int, world: int, servers: int) -> GangPart:
    """Return the partitions and shared parameters of one process.

    Args:
        config: the model, ``num_partitions`` resolved.
        rank: rank of the process; partition servers come after the trainers.
        world: number of trainers.
        servers: number of dedicated partition servers; -1: each trainer is one; 0: partitions go through the store.
    """
    needed = Layout(config).needed()
    counts = {name: entity.num_partitions for name, entity in config.entities.items()}
    keepers, index = (world, rank) if servers < 0 else (servers, rank - world)
    served, passing = {}, {}
    for name, sides in needed.items():
        if counts[name] > 1 and sides and keepers and index >= 0:
            served[name] = len(range(index, counts[name], keepers))  # as ``partitions.server.owner`` distributes them
            coming = -(-world * sides // keepers)  # when all ranks bring the partitions of a bucket at once
            passing[name] = min(served[name], coming) + min(served[name], 1)
    if rank >= world:
        return GangPart({}, served, passing, 0.0)
    trained = {name: 1 if count == 1 else needed[name] for name, count in counts.items()}
    moving = 2 if config.partitions_ahead else 0  # buckets: the next one and the last one
    ahead = {name: moving * sides for name, sides in needed.items() if counts[name] > 1 and moving * sides}
    return GangPart(trained, served, passing, 1 + 1 / world + (rank == 0), ahead)


def device_part(config: ModelConfig, devices: int) -> GangPart:
    """Return the host's share of a process with several devices.

    Partitions for which the devices have no room between two buckets stay there, which may be all. Those of a bucket
    are on its device. They pass through the host on their way from the store, when it keeps no other copy of them.

    Args:
        config: the model, ``num_partitions`` resolved.
        devices: number of devices.
    """
    one = gang_part(config, rank=0, world=devices, servers=-1)
    kept = gang_part(config, rank=devices, world=devices, servers=1)
    several = {name: entity.num_partitions > 1 for name, entity in config.entities.items()}
    trained = {name: count for name, count in one.trained.items() if not (several[name] and count)}
    ahead = {name: devices * count for name, count in one.ahead.items()}
    return GangPart(trained, kept.served, kept.passing, devices + 2, ahead)
