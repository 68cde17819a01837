"""Compare preparation on DuckDB with that on another engine, file by file.

    python -m tests.two_engines --edges N --seed N [--seeds N] [--nights N] [--engine spark|connect|sail]
        [--cluster] [--rows N]

Random graphs go through both, first cold, then warm from what the same engine made before. All files are compared by
their bytes. The exit status is 1 when any differs. It takes Java, and an environment with pyspark, as `make test-spark`
makes one. With `--cluster`, two executors, processes of their own, write to a real S3 server. `connect` is Spark behind
a server of Spark Connect; `sail` is Sail behind one, without Java, in an environment of its own, as `make test-sail`
makes one: it leaves out delta epochs. With `--rows`, tables are several files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import typer

from pbg_tasks.errors import ConfigError
from pbg_tasks.formats import tables
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.prepare import spark
from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import SnapshotCounts, count_snapshot
from pbg_tasks.prepare.delta import Delta
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import assign_ids
from pbg_tasks.prepare.snapshot import STAGED, open_staged
from pbg_tasks.prepare.validate import validate_snapshot
from pbg_tasks.storage import open_store
from tests.prepare.random_graphs import RandomGraph
from tests.spark import sail
from tests.spark.servers import connect_server

PARTS = ("snapshot", "entities", "edges")
_CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.authenticate": "true",
    "spark.authenticate.secret": secrets.token_hex(16),
    "spark.executor.memory": "1g",
}
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    # Half of the work of so small nights would be that of the better compiler, and some that of threads which collect.
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",  # so that rows come in several batches, and some in the last
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.parser.escapedStringLiterals": "true",  # as an application may have it; tasks must not
}


class Counts(NamedTuple):
    """Counts of a snapshot, of which a sample has all edges."""

    counts: SnapshotCounts

    def to_json(self):
        found, sample = self.counts, self.counts.sample
        ends = [] if sample is None else sorted(np.hstack([sample.types, sample.hashes.view(np.int64)]).tolist())
        return [found.entities, found.relations, found.edges, found.degrees, ends]


def by_duckdb(graph, key, root, before):
    """Prepare a night; return its directory and report."""
    spec, night = graph.spec(), root / key
    snapshot, entities, edges, scratch = (night / name for name in (*PARTS, "scratch"))
    for directory in (snapshot, entities, edges, scratch):
        directory.mkdir(parents=True)
    files = graph.files(key)
    with connect(spec.resources, scratch) as connection:
        counts = count_snapshot(connection, spec, files)
        checked = validate_snapshot(
            connection, spec, files, before=before and before / "snapshot" / EDGE_HASHES, out=snapshot
        )
        staged = open_staged(files, snapshot / STAGED)
        ids = assign_ids(connection, spec, staged, snapshot=key, previous=before and before / "entities", out=entities)
        returned = before and before / "edges" / "returned.parquet"
        buckets = write_buckets(
            connection,
            spec,
            staged,
            entities=entities,
            returned_previous=returned,
            out=edges,
            delta=before and _delta(spec, before / "snapshot" / EDGE_HASHES, key),
        )
    return night, (Counts(counts), checked, ids, buckets)


def by_spark(graph, key, store, before):
    """Prepare a night; return its files by part, and report.

    ``before`` has the files of the night before.
    """
    spec = graph.spec()
    places = {part: spark.Destination(store, f"{key}/{part}") for part in PARTS}
    was = before or dict.fromkeys(PARTS)
    with spark.open_tables("two engines") as opened:
        counts = spark.count_snapshot(opened, spec, graph.files(key))
        checked, stored = spark.validate_snapshot(
            opened, spec, graph.files(key), before=was["snapshot"], destination=places["snapshot"]
        )
        staged = places["snapshot"].files(stored)
    with spark.open_tables("two engines") as opened:
        known = before["relations"] if before else []
        ids, relations, stored = spark.assign_ids(
            opened,
            spec,
            staged,
            snapshot=key,
            previous=was["entities"],
            known_relations=known,
            destination=places["entities"],
        )
        entities = places["entities"].files(stored)
    with spark.open_tables("two engines") as opened:
        buckets, stored = spark.write_buckets(
            opened,
            spec,
            staged,
            entities=entities,
            relations=relations if spec.model.relations_from_data else None,
            previous=was["edges"],
            delta=before and _delta(spec, before["snapshot"], key),
            destination=places["edges"],
            check=lambda _: None,
        )
    found = {"snapshot": staged, "entities": entities, "edges": places["edges"].files(stored), "relations": relations}
    return found, (Counts(counts), checked, ids, buckets)


def _delta(spec, before, key):
    return spec.train.delta and Delta(spec.train.delta, before, key)


def compare(graph, nights, root, store):
    """Return the names of equal files, and of the others."""
    identical, different, here, there = [], [], None, None
    for day in range(nights):
        key = graph.write(day)
        here, expected = by_duckdb(graph, key, root / "duckdb", here)
        there, found = by_spark(graph, key, store, there)
        for name, equal in compared(here, expected, there, found):
            (identical if equal else different).append(f"{key}: {name}")
    return identical, different


def compared(here, expected, there, found):
    """Yield names of reports and files, and whether they are equal."""
    for one, other in zip(expected, found, strict=True):
        yield type(one).__name__, one.to_json() == other.to_json()
    yield "names of relations", read_relation_names(here / "entities") == there["relations"]
    for part in PARTS:
        made = {str(path.relative_to(here / part)): path for path in (here / part).rglob("*") if path.is_file()}
        # Rows are staged in one file or in several; the names of relations are compared above.
        wanted = {name: path for name, path in made.items() if name != STAGED and not name.startswith("dynamic_rel")}
        stored = {name: file for name, file in there[part].files.items() if not name.startswith("edges-")}
        for name in sorted(wanted.keys() | stored.keys()):
            equal = name in wanted and name in stored and _hashed(wanted[name]) == stored[name].sha256
            yield f"{part}/{name}", equal and _size(there[part], name) == wanted[name].stat().st_size


def _size(files, name):
    """Return the size of a file as the store has it."""
    info = open_store(files.store).head(f"{files.prefix}/{name}")
    return info and info.size


def _hashed(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(
    edges: Annotated[int, typer.Option(help="Rows of a snapshot.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the first graph.")] = 0,
    seeds: Annotated[int, typer.Option(help="Number of graphs, of successive seeds.")] = 1,
    nights: Annotated[int, typer.Option(help="The first is cold, the others are warm.")] = 2,
    engine: Annotated[Literal["spark", "connect", "sail"], typer.Option(help="The other engine.")] = "spark",
    *,
    cluster: Annotated[bool, typer.Option(help="Two executors with spark.authenticate, and an S3 server.")] = False,
    rows: Annotated[int, typer.Option(help="Most rows of a file of a table.")] = tables.ROWS_OF_A_FILE,
) -> None:
    """Print files compared, identical and different."""
    failed, tables.ROWS_OF_A_FILE = False, rows
    if cluster and engine == "sail":
        raise ConfigError("--cluster is of Spark: leave it out with --engine sail")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = stack.enter_context(_s3_server(directory)) if cluster else str(directory / "store")
        if engine == "spark":
            stack.enter_context(session(cluster=cluster))
        elif engine == "sail":
            stack.enter_context(sail.served(directory / "server.log"))
        else:
            os.environ["PYSPARK_PYTHON"] = sys.executable
            stack.enter_context(connect_server(settings(cluster=cluster), directory / "server.log"))
        for number in range(seed, seed + seeds):
            graph = RandomGraph(directory / str(number), edges, number, plain=True)
            if engine == "sail" and graph.document.pop("train", None):
                print(f"seed {number}: without delta epochs, which Sail does not compute")
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
                identical, different = compare(graph, nights, graph.root, f"{place}/{number}")
            compared = len(identical) + len(different)
            print(f"seed {number}: {compared} compared, {len(identical)} identical, {len(different)} different")
            for name in different[:20]:
                print(f"  different: {name}")
            failed = failed or bool(different)
    raise typer.Exit(1 if failed else 0)


def settings(*, cluster):
    """Return settings of an application: of two executors, or of two threads."""
    return _SMALL | (_CLUSTER if cluster else {"spark.master": "local[2]"})


@contextlib.contextmanager
def session(*, cluster):
    """Open a session, which all that follows takes.

    Its executors have the environment of this process.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("two engines")
    for key, value in settings(cluster=cluster).items():
        builder = builder.config(key, value)
    opened = builder.getOrCreate()
    try:
        yield opened
    finally:
        opened.stop()


@contextlib.contextmanager
def _s3_server(directory):
    """Run a server, whose keys are in the environment; yield a bucket."""
    from examples.stack.object_store import ObjectStore

    with ObjectStore(directory / "s3") as server:
        os.environ.update(server.environment())
        os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
        yield server.create_bucket("tests")


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except ConfigError as error:
        sys.exit(f"error: {error.kind}: {error}")
