"""``pbg init``: a config for edge lists alone."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import yaml

from pbg_tasks.config import ConfigSchema, Resources
from pbg_tasks.config.base import parse
from pbg_tasks.config.presets import OPERATOR, PRESET, of_size, takes_self_negatives
from pbg_tasks.errors import ConfigError, ConflictError, InputError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import count_snapshot
from pbg_tasks.progress import counted
from pbg_tasks.storage import open_file, tidy
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.directory.importing import NO_EDGES, found_lists, graph_of_lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config.results import Result
    from pbg_tasks.tasks.directory.importing import EdgeLists

_ENTITY, _DIMENSION = "entity", 200
_SUFFIXES = (".yaml", ".yml")


def write_config(url: str, lists: Sequence[str], how: EdgeLists, *, memory_gb: float = 4.0) -> Result:
    """Count the edges to train on, and write a config.

    Args:
        url: of the config, YAML, local or ``s3://``; nothing may be there.
        lists: a file, folder or glob each; the first is to be trained on.
        how: they are written.
        memory_gb: budget of the counting, in GB.

    Raises:
        ConfigError: there is a config already, or its name is none of a YAML file.
        InputError: a list is missing or unreadable, or the first has no edges.
    """
    if not url.lower().endswith(_SUFFIXES):
        raise ConfigError(f"{url}: the config is written as YAML; name it {PurePosixPath(url).stem}.yaml")
    store, name = open_file(url)
    entity_path, edges, checkpoint_path = _paths(name, lists)
    paths = {"entity_path": entity_path, "edge_paths": edges, "checkpoint_path": checkpoint_path}
    operator = "none" if how.rel is None else OPERATOR
    relation = {"name": "edge" if how.rel is None else "all", "lhs": _ENTITY, "rhs": _ENTITY, "operator": operator}
    keys: dict[str, object] = {"entities": {_ENTITY: {"num_partitions": 1}}, "relations": [relation]}
    keys |= {"dynamic_relations": how.rel is not None, "dimension": _DIMENSION, **PRESET}
    if takes_self_negatives(relation, {}):
        keys["self_negatives"] = True
    for each in lists[1:]:
        found_lists(each)
    graph = graph_of_lists(parse(ConfigSchema, keys | paths, source=url), how, Resources(memory_gb=memory_gb))
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        counts = count_snapshot(connection, graph, found_lists(lists[0]))
    if not counts.edges:
        raise InputError(f"{lists[0]}: {NO_EDGES}, so there is nothing to train on")
    keys |= of_size(counts.edges)
    keys["entities"] = {_ENTITY: {"num_partitions": "auto"}}
    figures = {"entities": counts.entities[_ENTITY], "relations": counts.relations, "edges": counts.edges}
    size = f"{figures['entities']:,} entities, {counted(counts.relations, 'relation')}, {counted(counts.edges, 'edge')}"
    head = f"# For {size}: a start, not tuned.\n{_first_only(url, edges)}"
    text = head + yaml.safe_dump(paths | keys, sort_keys=False)
    try:
        store.put_new(name, text.encode(errors="backslashreplace"))  # a folder's name may have any bytes
    except ConflictError:
        raise ConfigError(f"{url}: there is a config already; remove it or name another file") from None
    finally:
        tidy(store)
    return {"task": "init", "config": url, **figures}


def _first_only(url: str, edges: Sequence[str]) -> str:
    """Return a comment on the lists that are not for training."""
    command = f"pbg train {shlex.quote(url)} -p {shlex.quote(f'edge_paths={edges[0]}')}"
    return f"# Train on the first list only: {command}\n" if len(edges) > 1 else ""


def _paths(name: str, lists: Sequence[str]) -> tuple[str, list[str], str]:
    """Return the paths of entities, edges and checkpoint.

    They are named by the config and the lists.
    """
    graph = PurePosixPath(name).stem
    stems = [PurePosixPath(each.rstrip("/")).name.partition(".")[0] or str(n) for n, each in enumerate(lists)]
    edges = [stem if stems.count(stem) == 1 else f"{stem}_{n}" for n, stem in enumerate(stems)]
    return f"data/{graph}", [f"data/{graph}/{edge}" for edge in edges], f"model/{graph}"
