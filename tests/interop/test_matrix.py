"""Every operator and mode, trained by PBG and this package in turn.

Modes are standard and dynamic, with ids and with features.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.formats.directory import parse_stats_line, read_config
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.training.train import train_directory
from tests.interop.checkpoints import files_of, snapshot
from tests.interop.exports import check_rows, exported_entities
from tests.interop.graphs import IN_ONE_CHUNK, ROWS, held_out, write_graph
from tests.interop.oracle import PBGError
from tests.rotation import of_today

pytestmark = pytest.mark.interop
rows = pytest.mark.parametrize("row", of_today(ROWS, days=3), ids=str)


def longer(document, epochs):
    return document | {"num_epochs": document["num_epochs"] + epochs}


def parsed(document):
    return read_config(json.dumps(document).encode(), source="document")


def ours(document, seed=0):
    return train_directory(parsed(document), seed=seed)


def check_went_on(before, after, versions):
    """Check that the later checkpoint continues the earlier one.

    Its sums grew from there and its values moved from there.
    """
    assert after.version == before.version + versions
    assert after.values.keys() == before.values.keys()
    for name, sums in before.sums.items():
        assert (after.sums[name] >= sums * (1 - 1e-6)).all(), f"{name}: its sums began anew"
    moved = [name for name, value in before.values.items() if not np.array_equal(value, after.values[name])]
    assert moved, "nothing was trained"
    for name, value in before.values.items():
        if name.startswith("embeddings_"):
            assert np.abs(after.values[name] - value).mean() < np.abs(value).mean(), f"{name}: began anew"


def check_evaluation(document, oracle):
    """Compare the ranks of both; AUC depends on each program's random draws."""
    document = document | IN_ONE_CHUNK | {"edge_paths": [str(held_out(parsed(document)))]}
    theirs = oracle.evaluate(document)
    mine = evaluate_directory(parsed(document), negatives="config")
    assert mine["edges"] == theirs["count"]
    for name in ("pos_rank", "mrr", "r1", "r10", "r50"):
        assert mine["sampled"][name] == pytest.approx(theirs[name], rel=1e-6), name


def iterations(document):
    return document.get("num_edge_chunks", 1)


@rows
def test_pbg_takes_over_from_us(row, tmp_path, oracle):
    document = row.document(tmp_path)
    config = write_graph(document)
    ours(document)
    mine = snapshot(config)
    assert mine.version == document["num_epochs"] * iterations(document)

    check_evaluation(document, oracle)
    check_export(row, document, mine, oracle, tmp_path)

    oracle.train(longer(document, 1))
    theirs = snapshot(config)
    check_went_on(mine, theirs, iterations(document))
    assert len(files_of(config, theirs.version)) == 4
    assert not files_of(config, mine.version), "PBG deletes the version it began with"

    ours(longer(document, 2))
    check_went_on(theirs, snapshot(config), iterations(document))


@rows
def test_we_take_over_from_pbg(row, tmp_path, oracle):
    document = row.document(tmp_path)
    config = write_graph(document)
    oracle.train(document)
    theirs = snapshot(config)
    directory = Path(config.checkpoint_path)
    written = read_config((directory / "config.json").read_bytes(), source="config.json")
    assert written == config
    lines = (directory / "training_stats.json").read_text().splitlines()
    buckets = [found for line in lines if (found := parse_stats_line(line, source="training_stats.json"))]
    assert len(buckets) == theirs.version * config.partitions("lhs") * config.partitions("rhs")

    ours(longer(document, 1))
    mine = snapshot(config)
    check_went_on(theirs, mine, iterations(document))
    check_evaluation(document, oracle)

    oracle.train(longer(document, 2))
    check_went_on(mine, snapshot(config), iterations(document))


def check_export(row, document, mine, oracle, directory):
    """Check that PBG and this package export the same from our files.

    Of matrices PBG exports none, neither its own nor ours.
    """
    entities, relations = directory / "entities.tsv", directory / "relations.tsv"
    own_entities, own_relations = directory / "our-entities.tsv", directory / "our-relations.tsv"
    export_directory(parsed(document), entities_output=str(own_entities), relation_types_output=str(own_relations))
    expected = exported_entities(mine.values)
    if row.operator in {"linear", "affine"}:
        with pytest.raises(PBGError, match=r"^ValueError: only one element tensors can be converted"):
            oracle.export(document, entities, relations)
    else:
        oracle.export(document, entities, relations)
        parameters = exported_parameters(mine.values, operator=row.operator, dynamic=row.dynamic)
        for path in (relations, own_relations):
            check_rows(path, parameters, keys=5)
    for path in (entities, own_entities):
        check_rows(path, expected, keys=1)


def exported_parameters(values, *, operator, dynamic):
    """Return every relation's parameters.

    Their keys are name, side, operator, parameter and shape.
    """
    found = {}
    for path, value in values.items():
        if path.startswith("relations/"):
            _, index, _, side, name = path.split("/")
            stacked = value if dynamic else value[np.newaxis]
            for number, vector in enumerate(stacked, start=int(index)):
                found[f"r{number}", side, operator, name, str(len(vector))] = vector
    return found
