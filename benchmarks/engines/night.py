"""A night on Spark, from an Iceberg table to a LanceDB alias.

    .venv-spark/bin/python -m benchmarks.engines.night [--edges N]

The table, the graph's store and LanceDB are on a real S3 server. Airflow's tasks are processes; those of preparation
start Spark with two executors of one core each. Each line has the CPU seconds of all processes while the task ran,
Airflow's and the server's among them, and the most memory of one process of each kind.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import duckdb
import pyarrow as pa
import typer
import yaml

from benchmarks.engines.__main__ import FILES, SPARK, edges_of
from benchmarks.engines.family import adopt, look
from benchmarks.speed.usage import cpu_seconds
from examples.stack.stack import Stack
from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3_settings import s3_settings

if TYPE_CHECKING:
    from examples.stack.airflow import Airflow

BUCKET, GRAPH = "night", "purchases"
DAG = f"reembed_{GRAPH}"
ENDED = ("success", "failed")


def main(edges: Annotated[int, typer.Option(help="Rows of the table.")] = 20_000_000) -> None:
    """Print the cost of each task, and the rows behind the alias."""
    adopt()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "graphs").mkdir()
        settings = SPARK | {
            "spark.authenticate.secret": secrets.token_hex(16),
            "spark.eventLog.enabled": "false",
        }
        (root / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        own = {"SPARK_CONF_DIR": str(root), "PYSPARK_PYTHON": sys.executable}
        stack = Stack(root, graphs=root / "graphs", settings=own)
        try:
            os.environ.update(stack.start_store(BUCKET))
            catalog = {"type": "sql", "uri": f"sqlite:///{root}/lake.db", "warehouse": f"s3://{BUCKET}/lake"}
            key = make_table(catalog, edges)
            (root / "graphs" / f"{GRAPH}.yaml").write_text(yaml.safe_dump(graph(catalog)))
            failed = watch(stack.start_airflow(print), key)
            if not failed:
                show_alias()
        finally:
            stack.stop()
    raise typer.Exit(failed)


def make_table(catalog: dict[str, str], edges: int) -> str:
    """Write random edges to an Iceberg table; return its snapshot's key."""
    from pyiceberg.catalog import load_catalog

    found = s3_settings()
    keys = {"s3.endpoint": found.endpoint, "s3.access-key-id": found.key, "s3.secret-access-key": found.secret}
    lake = load_catalog("lake", **catalog, **keys)
    lake.create_namespace("shop")
    table = lake.create_table("shop.purchases", pa.schema([(name, pa.string()) for name in ("lhs", "rel", "rhs")]))
    name = f"'n' || (floor(random() * {edges * 44 // 100}))::BIGINT"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.sql("SELECT setseed(0.5)").fetchall()
        for file in range(FILES):
            table.append(connection.sql(edges_of(file, edges, name, name)).to_arrow_table())
    return str(table.snapshots()[-1].snapshot_id)


def graph(catalog: dict[str, str]) -> dict[str, Any]:
    """Return the graph's spec."""
    return {
        "graph": GRAPH,
        "store": f"s3://{BUCKET}/graphs",
        "snapshots": {
            "location": "iceberg://lake/shop.purchases/{snapshot}",
            "format": "iceberg",
            "options": {"catalog": catalog},
        },
        "model": {
            "entities": {"n": {"num_partitions": 8}},
            "relations": [{"name": f"r{number}", "lhs": "n", "rhs": "n"} for number in range(4)],
            "dimension": 16,
            "num_epochs": 1,
        },
        "eval": {"max_edges": 2000},
        "gates": {"min_over_popularity": {"block": 0}, "min_over_start": {"block": 0}},  # nothing to learn
        "resources": {"engine": "spark", "memory_gb": 1, "threads": 1},
        "exports": [{"format": "lancedb"}],
    }


def watch(airflow: Airflow, key: str) -> bool:
    """Run the night, and print each task's cost; return whether it failed."""
    api = airflow.api
    while DAG not in (found := api.dag_ids()):
        if errors := api.import_errors() or [name for name in found if name.startswith("broken_")]:
            raise RuntimeError(errors[0])
        time.sleep(1)
    api.unpause(DAG)
    run = api.trigger(DAG, partition_key=key)
    began = (time.perf_counter(), cpu_seconds(os.getpid()))
    first, before = began, began
    peaks: dict[str, int] = {}
    known: set[str] = set()
    while (state := api.run_state(DAG, run)) not in ENDED:
        look(peaks)
        tasks = api.tasks(DAG, run)
        new = [
            each for each in tasks if each.state in (*ENDED, "skipped", "upstream_failed") and each.task not in known
        ]
        if new:
            now = (time.perf_counter(), cpu_seconds(os.getpid()))
            print_cost(", ".join(each.task for each in new), before, now, peaks)
            before, peaks = now, {}
            known |= {each.task for each in new}
        time.sleep(0.5)
    print_cost("all", first, (time.perf_counter(), cpu_seconds(os.getpid())), {})
    for each in api.tasks(DAG, run):
        if each.state == "failed":
            print("\n".join(api.log(DAG, run, each)[-20:]))
    return state == "failed"


def print_cost(name: str, before: tuple[float, float], now: tuple[float, float], peaks: dict[str, int]) -> None:
    """Print wall time, CPU time and memory of tasks."""
    wall, cpu = (end - begin for begin, end in zip(before, now, strict=True))
    memory = ", ".join(f"{kind} {peak / 1e6:.0f}" for kind, peak in sorted(peaks.items()))
    print(f"{name:40} {cpu:8.1f} CPU s {wall:8.1f} s  {memory}", flush=True)


def show_alias() -> None:
    """Print the rows behind the alias, as LanceDB's own client counts them."""
    import lancedb

    destination = f"s3://{BUCKET}/graphs/sinks/lancedb"
    pointer = json.loads(open_store(destination).get(f"_pbg/{GRAPH}_production/current.json").data)
    options = {"allow_http": "true", "aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}
    database = lancedb.connect(destination, storage_options=options)
    for alias, served in pointer["tables"].items():
        rows = database.open_table(served["table"]).count_rows()
        print(f"{alias}: {served['table']}, {rows} rows")


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
