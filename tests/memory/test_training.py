"""The forecast compared with real trainings, and gangs by terms.

Each training runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.memory.gang import GangPart
from pbg_tasks.memory.parameters import parameter_count
from pbg_tasks.memory.steps import worker_memory
from pbg_tasks.memory.training import TrainingSize, serving_forecast, training_forecast
from pbg_tasks.native import instruction_set, library
from pbg_tasks.native.coverage import BFLOAT16
from tests.rotation import of_today

TOLERANCE = 0.1
WEIGHTY = 200_000_000  # bytes that a case needs beside the process itself, to have any significance


def data_set(root, *, entities, edges, partitions=1, relations=1):
    """Write an entity path and random buckets of unequal sizes."""
    random = np.random.default_rng(0)
    sizes = [entities // partitions] * partitions
    (root / "entities").mkdir()
    (root / "edges").mkdir()
    for part, size in enumerate(sizes):
        (root / "entities" / f"entity_count_n_{part}.txt").write_text(str(size))
    (root / "entities" / "dynamic_rel_count.txt").write_text(str(relations))
    buckets = [(lhs, rhs) for lhs in range(partitions) for rhs in range(partitions)]
    for (lhs, rhs), count in zip(buckets, random.multinomial(edges, [1 / len(buckets)] * len(buckets)), strict=True):
        columns = (random.integers(0, limit, count) for limit in (sizes[lhs], sizes[rhs], relations))
        write_edges(root / "edges" / edge_file_name(lhs, rhs), EdgeList(*columns))


def trained(root, *, operator="none", all_negs=False, partitions=1, relations=1, ranks=None, **keys):
    """Train in other processes; return the memory report of rank 0."""
    listed = 1 if keys.get("dynamic_relations") else relations
    relation = {"lhs": "n", "rhs": "n", "operator": operator, "all_negs": all_negs}
    config = {
        "entity_path": str(root / "entities"),
        "edge_paths": [str(root / "edges")],
        "checkpoint_path": str(root / "checkpoint"),
        "entities": {"n": {"num_partitions": partitions}},
        "relations": [{"name": f"r{i}", **relation} for i in range(listed)],
        "global_emb": False,
        "eval_fraction": 0,
        "hogwild_delay": 0,
        "workers": 1,
        **keys,
    }
    path = root / "config.json"
    path.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pbg_tasks", "train", path, "--json", *(["--ranks", str(ranks)] if ranks else [])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PBG_SCRATCH": str(root / "scratch")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["memory"]


ONE_CHUNK = {
    "dimension": 16,
    "comparator": "dot",
    "loss_fn": "softmax",
    "batch_size": 5_000,
    "num_batch_negs": 5_000,
    "num_uniform_negs": 10_000,
}
CASES = {
    "one partition, ComplEx, many negatives, two workers": (
        {"entities": 150_000, "edges": 8_000, "relations": 200},
        {
            "operator": "complex_diagonal",
            "dynamic_relations": True,
            "dimension": 400,
            "comparator": "dot",
            "loss_fn": "softmax",
            "num_uniform_negs": 500,
            "workers": 2,
        },
    ),
    "many edges, some held out, several relations": (
        {"entities": 100_000, "edges": 5_000_000, "relations": 3},
        {"dimension": 32, "eval_fraction": 0.002},
    ),
    "many edges, some held out, of which the next epoch holds out others": (
        {"entities": 100_000, "edges": 5_000_000, "relations": 3},
        {"dimension": 32, "eval_fraction": 0.002, "num_epochs": 2},
    ),
    "two partitions, many edges, some held out, several relations": (
        {"entities": 100_000, "edges": 20_000_000, "partitions": 2, "relations": 3},
        {"dimension": 32, "eval_fraction": 0.002},
    ),
    "engine torch": (
        {"entities": 120_000, "edges": 8_000},
        {"dimension": 300, "loss_fn": "softmax", "num_uniform_negs": 500, "mask_known_negatives": True},
    ),
    "four partitions, three of them in memory": (
        {"entities": 340_000, "edges": 20_000, "partitions": 4},
        {"dimension": 200, "partition_buffer": 3},
    ),
    "more edges than embeddings, several relations, held-out edges": (
        {"entities": 100_000, "edges": 3_200_000, "relations": 3},
        {
            "operator": "translation",
            "dimension": 64,
            "batch_size": 10_000,
            "num_batch_negs": 2,
            "num_uniform_negs": 2,
            "eval_fraction": 0.01,
            "eval_num_batch_negs": 2,
            "eval_num_uniform_negs": 2,
        },
    ),
    "two workers that rank held-out edges among many negatives": (
        {"entities": 50_000, "edges": 40_000},
        {
            "dimension": 400,
            "workers": 2,
            "eval_fraction": 0.5,
            "eval_num_batch_negs": 2,
            "eval_num_uniform_negs": 30,
        },
    ),
    "all_negs, native": (
        {"entities": 500_000, "edges": 600},
        {"all_negs": True, "dimension": 16, "comparator": "dot", "loss_fn": "softmax", "batch_size": 300},
    ),
    "one chunk of many negatives": ({"entities": 100_000, "edges": 5_000}, ONE_CHUNK),
    "one chunk of many negatives, a fifth of them listed": (
        {"entities": 100_000, "edges": 5_000},
        ONE_CHUNK | {"gradient": "sampled", "gradient_variance": 5.0},
    ),
    "l2, many uniform negatives": (
        {"entities": 80_000, "edges": 100},
        {
            "dimension": 400,
            "comparator": "l2",
            "loss_fn": "softmax",
            "batch_size": 50,
            "num_batch_negs": 50,
            "num_uniform_negs": 150_000,
        },
    ),
    "embeddings in bfloat16": (
        {"entities": 400_000, "edges": 8_000},
        {"dimension": 300, "comparator": "dot", "loss_fn": "softmax", "embedding_precision": "bf16"},
    ),
    "bf16, many uniform negatives": (
        {"entities": 200_000, "edges": 1_000},
        {
            "dimension": 100,
            "comparator": "dot",
            "loss_fn": "softmax",
            "num_batch_negs": 1_000,
            "num_uniform_negs": 50_000,
            "precision": "bf16",
        },
    ),
}


SMALL = [case for case, (data, _) in CASES.items() if data["edges"] < 1_000_000]
LARGE = [case for case in CASES if case not in SMALL]


@pytest.mark.parametrize("case", [*of_today(SMALL, days=3), *of_today(LARGE, days=4)])
def test_forecast_is_near_the_measured_peak(tmp_path, case):
    data, model = CASES[case]
    if model.get("precision") == "bf16" and instruction_set() not in BFLOAT16:
        pytest.skip("torch computes it on this CPU")
    data_set(tmp_path, **data)
    shared = {key: value for key, value in data.items() if key in {"partitions", "relations"}}
    told = trained(tmp_path, **shared, **model)
    assert told["peak"] - told["lines"]["process"] > WEIGHTY
    # The forecast is of AVX512_BF16, which keeps a chunk's factors rounded for two products; AMX rounds one block.
    amx = model.get("precision") == "bf16" and instruction_set() == "amx"
    spared = 4 * model["num_batch_negs"] * (model["num_batch_negs"] + model["num_uniform_negs"]) if amx else 0
    assert told["peak"] - spared == pytest.approx(told["measured_peak"], rel=TOLERANCE)


def test_type_without_relation_is_read_at_end(tmp_path):
    data_set(tmp_path, entities=20_000, edges=2_000)
    for part in range(2):
        (tmp_path / "entities" / f"entity_count_idle_{part}.txt").write_text("60000")
    entities = {"n": {"num_partitions": 1}, "idle": {"num_partitions": 2}}
    told = trained(tmp_path, entities=entities, dimension=1000)
    assert told["lines"]["a partition that no relation names"] > WEIGHTY
    assert told["peak"] == pytest.approx(told["measured_peak"], rel=TOLERANCE)


def test_rank_holds_partitions_kept_for_others(tmp_path):
    """Train four partitions with two ranks.

    Two are trained, two kept, two arrive meanwhile, and one is being stored.
    """
    data_set(tmp_path, entities=160_000, edges=1_600, partitions=4)
    told = trained(tmp_path, partitions=4, ranks=2, dimension=400)
    assert told["lines"]["partitions kept for the gang"] == 2 * 40_000 * 401 * 4
    assert told["peak"] >= told["measured_peak"] * (1 - TOLERANCE)


@pytest.mark.skipif(library() is None, reason="no native library: it is built where a C++ compiler is")
def test_all_negs_keep_no_scores_of_batches(tmp_path):
    data_set(tmp_path, entities=200_000, edges=1_200)
    told = trained(tmp_path, all_negs=True, dimension=16, comparator="dot", loss_fn="softmax", batch_size=1_200)
    scores = 1_200 * 200_000 * 4
    assert told["measured_peak"] - told["lines"]["process"] < scores / 2


GANG = {"entities": {"n": {"num_partitions": 4}, "one": {"num_partitions": 1}}, "dimension": 99}
COUNTS = {"n": [50_000, 60_000, 70_000, 80_000], "one": [30_000]}
ROW = 400  # bytes: 99 numbers and their sum


def gang_size(part, **changes):
    relations = [
        {"name": "r", "lhs": "n", "rhs": "n", "operator": "affine"},
        {"name": "s", "lhs": "n", "rhs": "one", "operator": "none"},
    ]
    config = ModelConfig.model_validate({**GANG, "relations": relations})
    size = {"config": config, "counts": COUNTS, "relation_count": 2, "held": part.trained, "edges": 1_000, "ahead": 0}
    return TrainingSize(**size, workers=1, engine="native", gang=part, **changes)


def test_terms_of_rank_follow_from_its_part():
    part = GangPart(trained={"n": 2, "one": 1}, served={"n": 2}, passing={"n": 3}, copies=2.5)
    lines = training_forecast(gang_size(part)).to_json()["lines"]
    numbers = 2 * 4 * parameter_count(gang_size(part).config, 2)  # with sums
    assert lines["embeddings in memory"] == (80_000 + 70_000 + 30_000) * ROW
    assert lines["partitions kept for the gang"] == (80_000 + 70_000) * ROW
    assert lines["partitions coming and being stored"] == (80_000 + 70_000 + 60_000) * ROW
    assert lines["copies of what ranks share"] == int(2.5 * (30_000 * ROW + numbers))
    assert lines["shared parameters"] == numbers
    assert "partition_buffer" not in training_forecast(gang_size(part)).keys  # ranks do not have this key


def test_sample_of_early_stopping_takes_memory():
    """As many workers rank as there are batches of a thousand edges."""
    part = GangPart(trained={"n": 2, "one": 1}, served={}, passing={}, copies=1.0)
    trains_all, holds_out = (gang_size(part).config.model_copy(update={"eval_fraction": share}) for share in (0.0, 0.1))

    def memory(ranked, workers=4):
        size = replace(gang_size(part), config=trains_all, workers=workers, ranked=ranked)
        found = worker_memory(size)
        return found.kept + found.ranking, found.ranking

    (nothing, none), (one, of_one) = memory(0), memory(1000)
    assert none == 0
    assert one > nothing
    assert 0 < memory(500)[1] < of_one
    assert memory(1001)[1] == 2 * of_one
    assert memory(10**6)[1] == 4 * of_one
    assert worker_memory(replace(gang_size(part), config=holds_out, workers=4)).ranking == 4 * of_one


def test_partition_server_trains_nothing():
    part = GangPart(trained={}, served={"n": 4}, passing={"n": 5}, copies=0.0)
    forecast = serving_forecast(gang_size(part).config, COUNTS, part, base=10**9)
    assert forecast.task == "partition server"
    assert forecast.to_json()["lines"] == {
        "process": 1_028_000_000,
        "partitions kept for the gang": 260_000 * ROW,
        "partitions coming and being stored": (260_000 + 80_000) * ROW,
        "files being written": 80_000 * 4 * 5 // 4,
    }
