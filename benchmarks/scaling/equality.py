"""Quality of several ranks compared with one.

python -m benchmarks.scaling.equality
python -m benchmarks.scaling.equality --ranks 2,4 --ahead

The same graph, epochs and seeds are trained by gangs of every size. Prints, for each number of ranks, the filtered test
MRR of every seed and whether the ledger has every edge of every epoch exactly once; the figures are kept in
``benchmarks/results/scaling.json``, in place of those of the same gangs. With ``--ahead`` gangs move partitions behind
the training; one rank trains the same as without.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.quality.triples import imported
from pbg_tasks.checkpoint import open_committed
from pbg_tasks.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.quality.commands import Pbg

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
PARTITIONS = 16  # as many partitions as keep eight ranks at work
CONFIG: dict[str, Any] = {
    "entity_path": "data",
    "edge_paths": ["train", "valid", "test"],
    "checkpoint_path": "model",
    "entities": {"all": {"num_partitions": PARTITIONS}},
    "relations": [{"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
    "dynamic_relations": True,
    "dimension": 100,
    "global_emb": False,
    "comparator": "dot",
    "loss_fn": "softmax",
    "num_uniform_negs": 100,
    "lr": 0.1,
    "workers": 1,
    "eval_fraction": 0.0,
}
Row = dict[str, Any]


def measure(pbg: Pbg, *, ranks: int, seed: int, epochs: int, servers: int, order: str, ahead: bool = False) -> Row:
    """Train with so many ranks and rank the test edges."""
    shutil.rmtree(pbg.directory / "model", ignore_errors=True)
    options = ["-p", "edge_paths=train", "-p", f"num_epochs={epochs}", "-p", f"num_partition_servers={servers}"]
    options += ["-p", f"bucket_order={order}", "-p", f"partitions_ahead={str(ahead).lower()}"]
    gang = [] if ranks == 1 else ["--ranks", str(ranks)]
    trained = pbg("train", "train", "config.json", *options, *gang, "--seed", str(seed))
    known = ("--filtered", "--known", "train", "--known", "valid")
    found = pbg("eval", "eval", "config.json", "-p", "edge_paths=test", *known)
    manifest, _ = open_committed(open_store(str(pbg.directory / "model")), "")
    return {
        "ranks": ranks,
        "seed": seed,
        "servers": servers,
        "order": order,
        "ahead": ahead,
        "mrr": found["filtered"]["mrr"],
        "edges": list(manifest.edges),
        "retrained": sum(manifest.retrained),
        "seconds": trained["seconds"],
    }


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a line for each number of ranks.

    It has the distance from one rank in standard deviations of the seeds.
    """
    one = [row["mrr"] for row in rows if row["ranks"] == 1 and not row["ahead"]]
    noise = statistics.stdev(one) if len(one) > 1 else float("nan")
    whole = {tuple(row["edges"]) for row in rows}
    lines = []
    for ranks, ahead in sorted({(row["ranks"], row["ahead"]) for row in rows}):
        found = [row["mrr"] for row in rows if (row["ranks"], row["ahead"]) == (ranks, ahead)]
        mean, listed = statistics.mean(found), ", ".join(f"{mrr:.4f}" for mrr in found)
        away = (mean - statistics.mean(one)) / noise if one else float("nan")
        lines.append(
            f"{ranks} ranks{', partitions_ahead' * ahead}: filtered MRR {mean:.4f} ({listed}), "
            f"{away:+.1f} standard deviations from one rank"
        )
    twice = sum(row["retrained"] for row in rows)
    return [*lines, f"edges of each epoch, over all runs: {sorted(whole)}; trained twice: {twice}"]


def main(
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    ranks: Annotated[str, typer.Option(help="Sizes of gangs.")] = "1,2,4,8",
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each training.")] = 5,
    servers: Annotated[int, typer.Option(help="num_partition_servers: 0 or -1.")] = -1,
    order: Annotated[
        str, typer.Option(help="bucket_order of all, since orders differ in what they learn.")
    ] = "affinity",
    *,
    ahead: Annotated[bool, typer.Option("--ahead", help="partitions_ahead.")] = False,
) -> None:
    """Train gangs of every size with every seed."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        pbg = imported(Path(directory), data, CONFIG)
        for seed in range(seeds):
            for size in map(int, ranks.split(",")):
                rows.append(
                    measure(pbg, ranks=size, seed=seed, epochs=epochs, servers=servers, order=order, ahead=ahead)
                )
                print(rows[-1], flush=True)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    sizes = {(row["ranks"], ahead) for row in rows}
    kept = [row for row in results["equality"] if (row["ranks"], row["ahead"]) not in sizes]
    results["equality"] = rows = kept + rows
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    typer.run(main)
