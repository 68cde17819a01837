"""PBG's own command line on a directory of this package.

Its pool of processes, its config files, and its safe unpickling.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.tasks.training.train import train_directory
from tests.interop.checkpoints import snapshot
from tests.interop.exports import check_rows, exported_entities
from tests.interop.graphs import ROWS, write_graph

pytestmark = pytest.mark.interop


def test_pbgs_commands_continue_and_export_our_directory(tmp_path, oracle):
    (row,) = [row for row in ROWS if str(row) == "complex_diagonal-dynamic-ids"]
    document = row.document(tmp_path)
    config = write_graph(document)
    train_directory(config)
    before = snapshot(config)
    longer = document | {"num_epochs": document["num_epochs"] + 1}
    oracle.command("train", longer)
    assert snapshot(config).version > before.version
    entities, relations = tmp_path / "entities.tsv", tmp_path / "relations.tsv"
    options = ["--entities-output", entities, "--relation-types-output", relations]
    oracle.command("converters.export_to_tsv", longer, *options)
    assert len(entities.read_text().splitlines()) == 81
    assert len(relations.read_text().splitlines()) == 3 * 2 * 2
    train_directory(ConfigSchema(**longer | {"num_epochs": longer["num_epochs"] + 1}))


def test_pbg_trains_on_files_with_checksums(tmp_path, oracle):
    (row,) = [row for row in ROWS if str(row) == "complex_diagonal-dynamic-ids"]
    document = row.document(tmp_path) | {"num_epochs": 1}
    config = write_graph(document | {"checksums": True})
    train_directory(config)
    written = [*Path(config.checkpoint_path).glob("embeddings_*"), *Path(config.edge_paths[0]).glob("*.h5")]
    for path in written:
        with h5py.File(path) as file:
            assert all(file[name].fletcher32 for name in ("embeddings", "lhs", "rhs", "rel") if name in file)
    before = snapshot(config)
    entities = tmp_path / "entities.tsv"
    oracle.export(document, entities, tmp_path / "relations.tsv")
    check_rows(entities, exported_entities(before.values), keys=1)
    oracle.train(document | {"num_epochs": 2})
    assert snapshot(config).version > before.version
    assert train_directory(config.model_copy(update={"num_epochs": 3}))["edges_trained"]
