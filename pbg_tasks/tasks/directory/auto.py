"""``num_partitions: auto`` in a PBG config.

An import chooses the numbers; every other command reads them from the entity path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config import GraphSpec, Resources
from pbg_tasks.config.base import parse
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import count_snapshot
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.directory.importing import found_lists, graph_of_lists
from pbg_tasks.tasks.partitioning import partition_counts, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.tasks.directory.importing import EdgeLists


def choose_partitions(
    config: ConfigSchema, auto: Collection[str], lists: Sequence[str], how: EdgeLists, *, memory_gb: float
) -> dict[str, int]:
    """Count edge lists and return the smallest numbers of partitions that fit.

    With these numbers training stays within its memory.

    Args:
        config: its numbers of partitions of ``auto`` are ignored.
        auto: entity types that need a number.
        lists: a file, folder or glob each.
        how: format and columns of the lists.
        memory_gb: of the import, and of the training, in GB.

    Raises:
        ConfigError: no number is enough.
        InputError: a list is missing or unreadable.
    """
    document = graph_of_lists(config, how, Resources(memory_gb=memory_gb)).model_dump(mode="json")
    for entity in auto:
        document["model"]["entities"][entity]["num_partitions"] = "auto"
    graph = parse(GraphSpec, document, source="config")
    files = [file for url in lists for file in found_lists(url)]
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        counts = count_snapshot(connection, graph, files)
    chosen = partition_counts(resolve(graph, counts, None)[0].model)
    return {entity: chosen[entity] for entity in auto}
