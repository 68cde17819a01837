"""Equal figures of PBG and this package for one checkpoint and candidates."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.formats.entities import write_relation_names
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.training.train import train_directory
from tests.interop.graphs import COMMON, ROWS, held_out, paths, write_entities, write_graph
from tests.interop.oracle import parse_stats, write_config

pytestmark = pytest.mark.interop

# As large as UMLS.
ENTITIES, RELATIONS = 135, 46
SPLITS = {"train": 5216, "valid": 652, "test": 661}
OURS = {"pos_rank": "mr", "mrr": "mrr", "r1": "hits1", "r10": "hits10", "r50": "hits50"}


def document(root):
    return {
        "entities": {"all": {"num_partitions": 1}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "complex_diagonal", "all_negs": True}],
        "dynamic_relations": True,
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "num_epochs": 10,
        "batch_size": 100,
        "num_batch_negs": 50,
        "num_uniform_negs": 0,
        "eval_fraction": 0.0,
        **paths(root),
        **COMMON,
        "dimension": 32,
        "edge_paths": [str(root / "train")],
    }


def write_splits(config, root):
    """Place entities on a circle, with relations that lead around it.

    Each leads a fixed way round, give or take a few places.
    """
    rng = np.random.default_rng(0)
    write_entities(config, {"all": (ENTITIES,)})
    write_relation_names(root / "entities", [f"r{number}" for number in range(RELATIONS)], dynamic=True)
    total = sum(SPLITS.values())
    lhs, rel = rng.integers(ENTITIES, size=4 * total), rng.integers(RELATIONS, size=4 * total)
    rhs = (lhs + 3 * rel + rng.integers(8, size=len(lhs))) % ENTITIES
    triples = rng.permutation(np.unique(np.stack([lhs, rhs, rel]), axis=1), axis=1)[:, :total]
    start = 0
    for name, count in SPLITS.items():
        (root / name).mkdir()
        write_edges(root / name / edge_file_name(0, 0), EdgeList(*triples[:, start : start + count]))
        start += count


def printed_by_us(config_file, *arguments):
    command = [sys.executable, "-m", "pbg_tasks", "eval", str(config_file), *arguments, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return json.loads(done.stdout)


@pytest.mark.parametrize("trained_by", ["us", "pbg"])
def test_raw_and_filtered_figures_agree_in_every_digit(trained_by, tmp_path, oracle):
    keys = document(tmp_path)
    config = ConfigSchema(**keys)
    write_splits(config, tmp_path)
    if trained_by == "us":
        train_directory(config)
    else:
        oracle.train(keys)
    splits = [str(tmp_path / name) for name in SPLITS]
    test = f"edge_paths={splits[-1]}"
    known = [argument for path in splits[:-1] for argument in ("--known", path)]

    mine = printed_by_us(write_config(tmp_path / "config.py", keys), "-p", test, "--filtered", *known)
    raw = parse_stats(oracle.command("eval", keys, "-p", test))
    filtered = parse_stats(oracle.evaluate(keys | {"edge_paths": splits[-1:]}, known=splits)["printed"])

    assert mine["edges"] == int(raw["count"]) == SPLITS["test"]
    for kind, theirs in (("raw", raw), ("filtered", filtered)):
        assert {name: f"{mine[kind][own]:.6g}" for name, own in OURS.items()} == {name: theirs[name] for name in OURS}
    assert 0.1 < mine["raw"]["mrr"] < mine["filtered"]["mrr"] < 1, "figures of a model that learned something"
    check_auc(mine["raw"]["auc"], float(raw["auc"]), float(raw["pos_rank"]))


def check_auc(mine, theirs, mean_rank):
    """Compare the exact AUC of this package with PBG's estimate.

    The exact one is the share of candidates that the true entity beats, which the mean rank gives as well.

    PBG draws two pairs an edge of a score and a negative, of other edges mostly. It is off by its draw, and by the
    distance between the scores of different edges: 0.02 here.
    """
    assert mine == pytest.approx(1 - (mean_rank - 1) / (ENTITIES - 1), abs=1e-5)
    deviation = math.sqrt(mine * (1 - mine) / (2 * SPLITS["test"]))
    assert abs(mine - theirs) < 3 * deviation + 0.02


@pytest.mark.parametrize("row", [row for row in ROWS if not row.featurized], ids=str)
def test_ranks_among_all_entities_are_pbgs(row, tmp_path, oracle):
    keys = row.document(tmp_path) | {"num_batch_negs": 10}
    keys["entities"]["user"] = {"num_partitions": 1}
    keys["relations"] = [relation | {"all_negs": True} for relation in keys["relations"]]
    config = write_graph(keys, {"user": (61,), "item": (20,)})
    train_directory(config)
    keys |= {"edge_paths": [str(held_out(config))], "disable_lhs_negs": False}
    theirs = oracle.evaluate(keys)
    mine = evaluate_directory(ConfigSchema(**keys))["raw"]
    for name, own in OURS.items():
        assert mine[own] == pytest.approx(theirs[name], rel=1e-6, abs=1e-6), name
