"""What each process of a gang has in memory, by how ranks exchange partitions and shared parameters.

It can be told without torch, so that a plan can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.memory import GangPart
from pbg_tasks.train.data.partitions import Layout

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig


def gang_part(config: ModelConfig, *, rank: int, world: int, servers: int) -> GangPart:
    """Return what one process of a gang holds.

    Args:
        config: the model, ``num_partitions`` resolved.
        rank: of the process; partition servers come after the trainers.
        world: trainers.
        servers: dedicated partition servers; -1: each trainer is one; 0: partitions go through the store.
    """
    needed = Layout(config).needed()
    counts = {name: entity.num_partitions for name, entity in config.entities.items()}
    keepers, index = (world, rank) if servers < 0 else (servers, rank - world)
    served, passing = {}, {}
    for name, sides in needed.items():
        if counts[name] > 1 and sides and keepers and index >= 0:
            served[name] = len(range(index, counts[name], keepers))  # as ``partition_server.owner`` deals them out
            coming = -(-world * sides // keepers)  # when all ranks hand in a bucket at once
            passing[name] = min(served[name], coming) + min(served[name], 1)
    if rank >= world:
        return GangPart({}, served, passing, 0.0)
    trained = {name: 1 if count == 1 else needed[name] for name, count in counts.items()}
    return GangPart(trained, served, passing, 1 + 1 / world + (rank == 0))
