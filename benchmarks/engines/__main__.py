"""Prepare a random night on both engines, and print its cost.

    .venv-spark/bin/python -m benchmarks.engines [--edges N] [--names N] [--engine duckdb|spark] [--tasks plan,validate]

It takes Java, and the environment that `make test-spark` makes. Each task is a process, as in Airflow. On Spark it is
an application with two executors of one core each, which are processes of their own. CPU time is that of all processes
of a task; other work on the machine changes it less than the wall time. Of Spark's tasks, the largest of each kind of
stage is printed, too: what a machine must hold at once. With twice as many names as edges, no name occurs twice.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import duckdb
import typer
import yaml

from benchmarks.engines.family import adopt, run
from benchmarks.engines.largest import largest_tasks

TASKS = ("plan", "validate", "partition", "bucket")
ENGINES = ("duckdb", "spark")
FILES = 8
SPARK = {
    "spark.master": "local-cluster[2,1,2048]",
    "spark.executor.memory": "2g",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


def main(
    edges: Annotated[int, typer.Option(help="Rows of the snapshot.")] = 1_000_000,
    names: Annotated[int, typer.Option(help="Of entities; 0: 0.44 for each edge, drawn.")] = 0,
    engine: Annotated[Literal["duckdb", "spark"] | None, typer.Option(help="Only this one.")] = None,
    tasks: Annotated[str, typer.Option(help="The first of the night's tasks, with commas.")] = ",".join(TASKS),
) -> None:
    """Print CPU seconds, wall time and memory of each task."""
    adopt()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_snapshot(root / "days" / "day", edges, names)
        print(f"{edges} edges; each task: CPU seconds, wall seconds, most MB of one process of each kind")
        for each in [engine] if engine else ENGINES:
            measure(root / each, root / "days", each, tasks.split(","))


def write_snapshot(folder: Path, edges: int, names: int) -> None:
    """Write random edges as Parquet files.

    With ``names`` of twice ``edges``, each end has a name of its own.
    """
    folder.mkdir(parents=True)
    count = names or max(1, edges * 44 // 100)
    left, right = (f"'n' || (floor(random() * {count}))::BIGINT" for _ in range(2))
    if names == 2 * edges:
        left, right = "'n' || i * 2", "'n' || (i * 2 + 1)"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; SELECT setseed(0.5)")
        for file in range(FILES):
            query = edges_of(file, edges, left, right)
            connection.execute(f"COPY ({query}) TO '{folder}/{file}.parquet' (FORMAT parquet, ROW_GROUP_SIZE 500000)")


def edges_of(file: int, edges: int, left: str, right: str) -> str:
    """Return DuckDB's query of a file's edges, of expressions of their ends."""
    numbers = f"range({file * edges // FILES}, {(file + 1) * edges // FILES}) AS numbers(i)"
    return f"SELECT {left} AS lhs, 'r' || i % 4 AS rel, {right} AS rhs FROM {numbers}"  # noqa: S608 - of numbers


def measure(root: Path, days: Path, engine: str, tasks: list[str]) -> None:
    """Run a night's tasks on one engine, and print each one's cost."""
    (root / "events").mkdir(parents=True)
    document = {
        "graph": "g",
        "store": str(root / "store"),
        "snapshots": {"location": f"{days}/{{snapshot}}/*.parquet"},
        "model": {
            "entities": {"n": {"num_partitions": 8}},
            "relations": [{"name": f"r{number}", "lhs": "n", "rhs": "n"} for number in range(4)],
            "dimension": 4,
        },
        "resources": {"engine": engine, "memory_gb": 4 if engine == "duckdb" else 1, "threads": 1},
    }
    spec = root / "g.yaml"
    spec.write_text(yaml.safe_dump(document))
    settings = SPARK | {
        "spark.eventLog.dir": (root / "events").as_uri(),
        "spark.authenticate.secret": secrets.token_hex(16),
    }
    (root / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(root),
        "PYSPARK_PYTHON": sys.executable,
        "PBG_SCRATCH": str(root),
    }
    url, cpu, wall = "", 0.0, 0.0
    for task in tasks:
        command = [sys.executable, "-m", "pbg_tasks", task]
        command += [str(spec), "--snapshot", "day", "--json"] if task == "plan" else [url]
        output = root / f"{task}.log"
        usage = run(command, environment, output)
        if task == "plan":
            lines = [line for line in output.read_text().splitlines() if line.startswith("{")]
            url = json.loads(lines[-1])["run"]
        cpu, wall = cpu + usage.cpu, wall + usage.wall
        peaks = ", ".join(f"{kind} {peak / 1e6:.0f}" for kind, peak in sorted(usage.peaks.items()))
        print(f"{engine:6} {task:9} {usage.cpu:8.1f} {usage.wall:8.1f}  {peaks}", flush=True)
    print(f"{engine:6} all       {cpu:8.1f} {wall:8.1f}")
    if engine == "spark":
        print("largest task by steps of its stage: rows and MB from a shuffle, MB spilled, tasks of the stage")
        for each in largest_tasks(root / "events"):
            spilled = each.spilled / 1e6
            print(f"  {each.kind:24} {each.rows:10} {each.bytes / 1e6:8.1f} {spilled:8.1f} {each.tasks:6}")


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
