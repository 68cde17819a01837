"""Speed and memory of embeddings in bfloat16 beside float32.

python -m benchmarks.scaling.embeddings --rounds 12

Tables are far larger than caches. A bucket of random edges among many entities is trained with tables of both kinds by
turns. Prints the memory that each table takes, and edges a CPU second of bfloat16 over those of float32 of the same
round.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer

from benchmarks.speed.table import markdown
from pbg_tasks.config import ModelConfig
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.memory.machine import resident_bytes
from pbg_tasks.progress import human_count
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.native import NativeEngine

WAYS = ("f32", "bf16")


class Case(NamedTuple):
    """A kind of model.

    Attributes:
        dimension: numbers of an embedding.
        comparator: of its scores.
        loss: its loss.
    """

    dimension: int
    comparator: str
    loss: str


CASES = (Case(100, "dot", "softmax"), Case(100, "cos", "ranking"), Case(200, "dot", "softmax"))


def config_of(case: Case, precision: str) -> ModelConfig:
    """Return the config of a case: translations, and 50 + 50 negatives."""
    return ModelConfig.model_validate(
        {
            "entities": {"e": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "e", "rhs": "e", "operator": "translation"}],
            "dimension": case.dimension,
            "comparator": case.comparator,
            "loss_fn": case.loss,
            "global_emb": False,
            "embedding_precision": precision,
        }
    )


def table_of(case: Case, precision: str, entities: int) -> tuple[Table, int]:
    """Return a random table, and the memory that it took."""
    before = resident_bytes() or 0
    table = Table.blank(entities, case.dimension, narrow=precision == "bf16")
    table.draw(1e-1, torch.Generator().manual_seed(0))
    return table, (resident_bytes() or 0) - before


def measure(case: Case, *, entities: int, edges: int, rounds: int) -> list[str]:
    """Return a row: the case, memory of both, ratios of speed."""
    engines = {way: NativeEngine(config_of(case, way), 1) for way in WAYS}
    tables, held = {}, {}
    for way in WAYS:
        tables[way], held[way] = table_of(case, way, entities)
    random, ratios = np.random.default_rng(0), []
    for number in range(rounds + 1):
        left, right = random.integers(0, entities, (2, edges))
        bucket = EdgeList(left, right, np.zeros(edges, np.int64))
        seconds = {}
        for way in WAYS if number % 2 else WAYS[::-1]:
            started = time.process_time()
            both = {"e": tables[way]}
            engines[way].train_bucket(bucket, both, both, generator=torch.Generator().manual_seed(number))
            seconds[way] = time.process_time() - started
        if number:  # the first one allocates
            ratios.append(seconds["f32"] / seconds["bf16"])
    shown = f"{min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}"
    return [
        f"{case.dimension} numbers, {case.comparator}, {case.loss}",
        human_count(held["f32"]) + "B",
        human_count(held["bf16"]) + "B",
        shown,
    ]


def main(
    entities: Annotated[int, typer.Option(help="Rows of each table.")] = 2_000_000,
    edges: Annotated[int, typer.Option(help="Of a round.")] = 200_000,
    rounds: Annotated[int, typer.Option(help="Of each case.")] = 10,
) -> None:
    """Measure all cases."""
    head = ["case", "f32", "bf16", "edges a CPU second, bf16 over f32: min / median / max"]
    lines = [measure(case, entities=entities, edges=edges, rounds=rounds) for case in CASES]
    print(markdown([head, *lines]))


if __name__ == "__main__":
    typer.run(main)
