"""New entities that start from their neighbours, against new entities that start at random.

Night one is a snapshot, or the second night's without the edges of some entities; night two continues it both ways. Of
night two's held-out edges, those with a new end are ranked apart from the others, against everyone, filtered.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import duckdb
import numpy as np
import typer
import yaml

from pbg_tasks.checkpoint import open_committed, open_preserved, preserved_prefix
from pbg_tasks.config import RunLayout
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.evaluate import evaluate_edges
from pbg_tasks.formats.edges import edge_file_name, read_edges
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import read_entity_count, read_relation_names
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.storage.columnar import list_files
from pbg_tasks.tasks.chain import run_chain, run_task
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.plan import plan
from pbg_tasks.train import PartitionKey, partition_keys

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.formats.edges import EdgeList

WAYS = ("random", "neighbours")
UNTIL_TRAINED = ("validate", "partition", "bucket", "train")


class Figures(NamedTuple):
    """Filtered MRR of held-out edges, and how many there are.

    Attributes:
        new: of those with a new end.
        others: of the others.
        edges: how many of each.
    """

    new: float
    others: float
    edges: tuple[int, int]

    @property
    def all(self) -> float:
        """MRR of all."""
        return float(np.average([self.new, self.others], weights=self.edges))


def write_days(graph: GraphSpec, before: str | None, after: str, share: float, seed: int, target: Path) -> None:
    """Write the two snapshots as Parquet; without ``before``, night one is night two without some entities' edges.

    Args:
        graph: says where snapshots lie and how they are written; text has no quotes and no header of other names.
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


def compare(spec: Path, before: str | None, after: str, *, share: float, seed: int, epochs: int, work: Path) -> None:
    """Print the figures of both ways after 0, 1, ... epochs of night two."""
    graph = load_graph_spec(spec)
    document = graph.model_dump(mode="json")
    write_days(graph, before, after, share, seed, work)
    document["store"] = str(work / "store")
    document["snapshots"] = {"location": str(work / "{snapshot}.parquet")}
    document["model"]["checkpoint_preservation_interval"] = 1
    document["train"] |= {"seed": seed, "warm_start": True}
    document["gates"] = {"max_mrr_drop": 1.0, "data": {"max_gone_entities": {}}}
    document["exports"] = []
    here = work / "graph.yaml"
    here.write_text(yaml.safe_dump(document), encoding="utf-8")
    first = run_chain(here, "d1")
    release = Path(first["release"]["directory"])
    for way in WAYS:
        found = [_night(here, way, 0, release)[0], *_night(here, way, epochs, release)] if epochs else []
        for epoch, figures in enumerate(found):
            new, others = figures.edges
            print(
                f"seed {seed}  {way:10}  epochs {epoch}  MRR of {new} edges with a new end {figures.new:.4f}, "
                f"of {others} others {figures.others:.4f}, of all {figures.all:.4f}",
                flush=True,
            )


def _night(spec: Path, way: str, epochs: int, release: Path) -> list[Figures]:
    """Train night two and return its figures after each epoch (after none, for no epochs)."""
    run = RunContext.open(plan(spec, "d2", overrides=[f"train.new_entities={way}"], epochs=epochs)["run"])
    for task in UNTIL_TRAINED:
        run_task(task, run.url)
    found = [_figures(run, epoch, release) for epoch in (range(1, epochs + 1) if epochs else [0])]
    shutil.rmtree(run.url)
    return found


def _figures(run: RunContext, epoch: int, release: Path) -> Figures:
    config, prefix = run.config, run.key(RunLayout.checkpoint)
    files = (
        open_preserved(run.store, preserved_prefix(prefix, epoch)) if epoch else open_committed(run.store, prefix)[1]
    )
    known = {key: read_entity_count(release, *key) for key in partition_keys(config)}
    matrix = run.require("bucket")["matrix"]
    grid = [(lhs, rhs) for lhs in range(len(matrix)) for rhs in range(len(matrix[0]))]

    def edges(split: str) -> dict[tuple[int, int], EdgeList]:
        folder = Path(run.url) / RunLayout.edges / split
        return {bucket: read_edges(folder / edge_file_name(*bucket)) for bucket in grid}

    ((entity, schema),) = config.entities.items()  # the examples have one type
    held_out, new = edges("test"), {}
    for bucket, listed in held_out.items():
        limits = [known[PartitionKey(entity, part if schema.num_partitions > 1 else 0)] for part in bucket]
        new[bucket] = (listed.lhs >= limits[0]) | (listed.rhs >= limits[1])
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            (key.entity, key.partition): files.fetch(embeddings_file_name(*key, files.version), Path(folder))
            for key in known
        }
        params = read_model(files.fetch(model_file_name(files.version), Path(folder))).params
        found = []
        for wanted in (True, False):
            asked = {bucket: listed.select(new[bucket] == wanted) for bucket, listed in held_out.items()}
            report, _ = evaluate_edges(
                config,
                params,
                paths,
                run.require("partition")["counts"],
                asked,
                lambda: iter([*held_out.items(), *edges("valid").items()]),
                train=lambda: iter(edges("train").items()),
                evaluation=run.spec.graph.eval,
                relation_names=read_relation_names(Path(run.url) / RunLayout.entities),
                threads=1,
                memory_bytes=1 << 30,
                seed=0,
            )
            found.append((report.to_json()["filtered"]["mrr"], sum(map(len, asked.values()))))
    return Figures(found[0][0], found[1][0], (found[0][1], found[1][1]))


def main(
    spec: Annotated[Path, typer.Argument(help="Graph spec with one entity type.", show_default=False)],
    after: Annotated[str, typer.Option(help="Snapshot of night two.")],
    before: Annotated[str | None, typer.Option(help="Snapshot of night one.")] = None,
    share: Annotated[float, typer.Option(help="Without --before: share of the entities that night one lacks.")] = 0.05,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of night two.")] = 2,
) -> None:
    """Compare the two ways of starting new entities."""
    for seed in map(int, seeds.split(",")):
        with tempfile.TemporaryDirectory() as work:
            compare(spec, before, after, share=share, seed=seed, epochs=epochs, work=Path(work))


if __name__ == "__main__":
    typer.run(main)
