"""New entities that start from their neighbours, or at random.

Night one is a snapshot, or the second night's without the edges of some entities; night two continues it both ways. Of
night two's held-out edges, those with a new end are ranked apart from the others, against all entities, filtered.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import duckdb
import typer
import yaml

from benchmarks import program
from benchmarks.nights.ranking import rank_held_out
from benchmarks.nights.results import keep
from benchmarks.nights.walk import remove, train
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.storage.columnar import list_files
from pbg_tasks.tasks.nightly.chain import run_chain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.nights.ranking import Figures
    from pbg_tasks.config import GraphSpec

WAYS = ("random", "neighbours")
SEEDS = (0, 1, 2)
SHARE = 0.05


def write_days(graph: GraphSpec, before: str | None, after: str, share: float, seed: int, target: Path) -> None:
    """Write the two snapshots as Parquet.

    Without ``before``, night one is night two without some entities' edges.

    Args:
        graph: with the location and format of snapshots; text has no quotes and no header of other names.
        before: key of night one.
        after: key of night two.
        share: of the entities that night one lacks, without ``before``.
        seed: chooses them.
        target: directory for ``d1.parquet`` and ``d2.parquet``.
    """

    def rows(key: str) -> duckdb.DuckDBPyRelation:
        files = [uri for uri, _, _ in list_files(graph.snapshots.resolve(key))]
        if graph.snapshots.format == "parquet":
            return duckdb.read_parquet(files)
        found = duckdb.read_csv(files, delimiter="\t", quotechar="", all_varchar=True, header=graph.snapshots.header)
        return found if graph.snapshots.header else found.project("column0, column1, column2")

    first, second = rows(before or after), rows(after)
    for side in () if before else (graph.columns.lhs, graph.columns.rhs):
        first = first.filter(f"md5_number_lower('{seed}/' || {side}) % 10000 >= {int(share * 10000)}")
    first.write_parquet(str(target / "d1.parquet"))
    second.write_parquet(str(target / "d2.parquet"))


def compare(
    spec: Path, before: str | None, after: str, *, share: float, seed: int, epochs: int, work: Path
) -> Iterator[dict[str, Any]]:
    """Train night one, and night two in both ways.

    Yields:
        For each way after 0, 1, ... ``epochs`` epochs of night two: ``seed``, ``way``, ``epoch``; the filtered MRR of
        held-out edges with a ``new`` end and of the ``others``; the number of ``edges`` of each.
    """
    graph = load_graph_spec(spec)
    document = graph.model_dump(mode="json")
    write_days(graph, before, after, share, seed, work)
    document["store"] = str(work / "store")
    document["snapshots"] = {"location": str(work / "{snapshot}.parquet")}
    document["split"]["salt"] = str(seed)
    document["train"] |= {"seed": seed, "warm_start": True}
    lenient = {"max_mrr_drop": 1.0, "max_trend_drop": {}}
    lenient |= {key: {"warn": 1} for key in ("min_over_popularity", "min_over_start")}
    document["gates"] = lenient | {"data": {"max_gone_entities": {}}}
    document["exports"] = []
    here = work / "graph.yaml"
    here.write_text(yaml.safe_dump(document), encoding="utf-8")
    run_chain(here, "d1")
    for way in WAYS:
        for epoch, found in enumerate(_nights(here, way, epochs)):
            yield {
                "seed": seed,
                "way": way,
                "epoch": epoch,
                "new": round(found.new, 4),
                "others": round(found.others, 4),
                "edges": list(found.edges),
            }


def _nights(spec: Path, way: str, epochs: int) -> Iterator[Figures]:
    """Train night two; yield its figures before and after each epoch."""
    start = f"train.new_entities={way}"
    untrained = train(spec, "d2", start, "model.num_epochs=0", "train.warm_epochs=null")
    yield rank_held_out(untrained)
    remove(untrained)
    trained = train(spec, "d2", start, f"train.warm_epochs={epochs}", "model.checkpoint_preservation_interval=1")
    for epoch in range(1, epochs + 1):
        yield rank_held_out(trained, epoch)
    remove(trained)


def measure(
    spec: Path, before: str | None, after: str, *, share: float = SHARE, seeds: Sequence[int] = SEEDS, epochs: int = 2
) -> None:
    """Compare both ways with every seed, and keep the figures.

    See ``compare``; they are kept under the name of the graph.
    """
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as work:
            for row in compare(spec, before, after, share=share, seed=seed, epochs=epochs, work=Path(work)):
                print(row, flush=True)
                rows.append(row)
    keep("newcomers", load_graph_spec(spec).graph, {"before": before, "after": after, "rows": rows})


def main(
    spec: Annotated[Path, typer.Argument(help="Graph spec with one entity type.", show_default=False)],
    after: Annotated[str, typer.Option(help="Snapshot of night two.")],
    before: Annotated[str | None, typer.Option(help="Snapshot of night one.")] = None,
    share: Annotated[float, typer.Option(help="Without --before: share of the entities that night one lacks.")] = SHARE,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; each draws other held-out edges.")] = ",".join(
        map(str, SEEDS)
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of night two.")] = 2,
) -> None:
    """Compare the two ways of starting new entities, and keep the figures."""
    measure(spec, before, after, share=share, seeds=[int(seed) for seed in seeds.split(",")], epochs=epochs)


if __name__ == "__main__":
    program.run(main)
