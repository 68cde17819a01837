"""Memory of one part of an evaluation beside its forecast.

    python -m tests.part_memory --entities 5000000 --parts 8

Two nights of a random graph are prepared, none of which trains: vectors are random ones of the size of trained ones.
The second one's evaluation is asked for one part, in a process of its own, which ranks edges by both nights' models
among all entities and measures the drift. Prints what the part held and its forecast, and ends with 1 where it held
more. 5 M entities of 100 numbers take 9 GB of disk, and minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
import yaml

from benchmarks import program
from pbg_tasks.errors import PbgError
from pbg_tasks.progress import say
from pbg_tasks.tasks.context import CHAIN
from tests.forecasts import command

_SPLIT = {"valid": 0.00002, "test": 0.00002}
_GATES: dict[str, Any] = {
    "data": {"max_removed_edges": {}},
    "max_mrr_drop": 1.0,
    "max_trend_drop": {},
    "min_over_popularity": {},
    "min_over_start": {},
}
_BLOCK = 1 << 20  # edges of a row group


def main(
    entities: Annotated[int, typer.Option(min=100, help="Of the graph; each is an end of two edges.")] = 5_000_000,
    dimension: Annotated[int, typer.Option(help="Numbers of a vector.")] = 100,
    partitions: Annotated[int, typer.Option(help="Of the entities.")] = 16,
    parts: Annotated[int, typer.Option(min=2, help="Of the evaluation.")] = 8,
    edges: Annotated[int, typer.Option(help="That are ranked, at most.")] = 200,
    scratch: Annotated[Path | None, typer.Option(help="Folder with room for both nights; None: the system's.")] = None,
) -> None:
    """Measure a part and compare it with its forecast."""
    with tempfile.TemporaryDirectory(prefix="pbg-part-", dir=scratch) as name:
        root = Path(name)
        spec = write_ring_spec(
            root,
            partitions=partitions,
            dimension=dimension,
            split=_SPLIT if entities > 1_000_000 else {"valid": 0.01, "test": 0.01},
            eval={"max_edges": edges, "max_candidates": 2 * entities, "parts": parts},
            gates=_GATES,
            resources={"memory_gb": 1, "threads": 1},
        )
        for day, count in (("d1", entities - entities // 100), ("d2", entities)):
            write_ring(root / f"{day}.parquet", count)
        night(spec, "d1", CHAIN[-1])
        planned = night(spec, "d2", "preserve")
        part = command("eval", planned["run"], "--part", f"1/{parts}")
    if part["against"] is None:
        raise PbgError("the part compared no release: a bug of this program")
    held, forecast = part["usage"]["memory_bytes"], planned["memory"]["eval_part"]["peak"]
    print(f"{entities:,} entities of {dimension} numbers in {partitions} partitions, part 1 of {parts}:")
    print(f"held {held / 1e6:,.0f} MB, forecast {forecast / 1e6:,.0f} MB")
    print(f"took {part['usage']['cpu_seconds']:.0f} CPU s, read {part['usage']['store_bytes_read'] / 1e6:,.0f} MB")
    sys.exit(held > forecast)


def write_ring_spec(root: Path, *, partitions: int, dimension: int, **sections: object) -> Path:
    """Write the spec of a graph of rings; return its path."""
    model = {
        "entities": {"node": {"num_partitions": partitions}},
        "relations": [{"name": "edge", "lhs": "node", "rhs": "node", "operator": "translation"}],
        "dynamic_relations": True,
        "dimension": dimension,
        "comparator": "dot",
        "loss_fn": "softmax",
    }
    snapshots = {"location": f"{root}/{{snapshot}}.parquet", "format": "parquet"}
    document = {"graph": "ring", "store": str(root / "store"), "snapshots": snapshots, "model": model, **sections}
    spec = root / "graph.yaml"
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    return spec


def write_ring(path: Path, entities: int) -> None:
    """Write a snapshot in which each entity has two edges."""
    schema = pa.schema([(name, pa.string()) for name in ("lhs", "rel", "rhs")])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, entities, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, entities))
            lhs, rhs = (pa.array(each.astype(str)) for each in (numbers, (numbers * 7 + 1) % entities))
            writer.write_table(pa.table([lhs, pa.repeat("edge", len(numbers)), rhs], schema=schema))


def night(spec: Path, day: str, last: str) -> dict[str, Any]:
    """Do a night that trains nothing, and return its plan."""
    planned = command("plan", str(spec), "--snapshot", day, "--epochs", "0", "--publish")
    for task in CHAIN[1 : CHAIN.index(last) + 1]:
        say(f"{day}: {task}")
        command(task, planned["run"])
    return planned


if __name__ == "__main__":
    program.run(main)
