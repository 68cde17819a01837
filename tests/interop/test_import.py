"""Files of PBG's importer, read with this project's readers.

They contain what the importer's input contained.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import read_edges
from pbg_tasks.formats.entities import read_entity_count, read_entity_names, read_relation_count, read_relation_names
from pbg_tasks.tasks.training.train import train_directory
from tests.interop.checkpoints import snapshot
from tests.interop.graphs import COMMON, paths

pytestmark = pytest.mark.interop

PARTITIONS = 3
EDGES = [(f"n{i}", f"rel{i % 2}", f"n{i * 5 % 11}é") for i in range(7)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["standard", "dynamic"])
def test_we_read_and_train_what_pbg_imports(dynamic, tmp_path, oracle):
    names = ["any"] if dynamic else ["rel0", "rel1"]
    keys = {
        "entities": {"n": {"num_partitions": PARTITIONS}},
        "relations": [{"name": name, "lhs": "n", "rhs": "n", "operator": "translation"} for name in names],
        "dynamic_relations": dynamic,
        "global_emb": not dynamic,
        **paths(tmp_path),
        **COMMON,
    }
    source = tmp_path / "edges.tsv"
    source.write_text("".join("\t".join(edge) + "\n" for edge in EDGES))
    oracle.importing(keys, source)

    config = ConfigSchema(**keys)
    assert sorted(triples(config)) == sorted(EDGES)
    assert len(list(Path(config.edge_paths[0]).iterdir())) < PARTITIONS**2, "PBG leaves out empty buckets"
    if dynamic:
        assert read_relation_count(Path(config.entity_path)) == 2
    result = train_directory(config)
    assert result["edges_trained"] == len(EDGES)
    assert snapshot(config).version == 1


def triples(config):
    """Return the names of every edge's ends and relation."""
    directory = Path(config.entity_path)
    # In standard mode the names are in the config, and PBG 1.0.0 writes no file of them.
    relations = read_relation_names(directory) if config.dynamic_relations else [one.name for one in config.relations]
    names = [
        read_entity_names(directory, "n", partition, count=read_entity_count(directory, "n", partition))
        for partition in range(PARTITIONS)
    ]
    for path in Path(config.edge_paths[0]).glob("edges_*.h5"):
        _, i, j = path.stem.split("_")
        edges = read_edges(path)
        for lhs, rel, rhs in zip(edges.lhs, edges.rel, edges.rhs, strict=True):
            yield names[int(i)][lhs], relations[rel], names[int(j)][rhs]
