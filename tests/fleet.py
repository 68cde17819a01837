"""Many graphs in a real DAG processor: ``python -m tests.fleet --graphs 200``.

Every graph has the four DAGs of a graph with a calendar and collections. The processor runs with Airflow's own limits,
each file once, on a database of its own; the counts are those of a scheduler that reads it. ``--picture FILE`` opens
Airflow's list of these DAGs in a real browser afterwards and takes a picture of it, as docs/airflow.md shows.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.tasks.dag_file import write_dag_file, write_dag_files
from tests.browser import chromium
from tests.operators.specs import spec_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DAGS_OF_A_GRAPH = 4
NIGHTS = {"calendar": {"cron": "0 3 * * *", "key_format": "%Y-%m-%d"}, "collect": {}}
REPOSITORY = Path(__file__).resolve().parents[1]
DEADLINE_SECONDS = 1800.0
_SPIN = [sys.executable, "-c", "while True: pass"]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Findings of a DAG processor in a folder of graph specs.

    Attributes:
        graphs: how many.
        dags: ids that a scheduler finds.
        errors: import errors, by file.
        seconds: wall time of the processor, its own start included.
        longest: seconds that the slowest file took to parse.
        size: bytes of the stored DAGs of a graph, on average.
    """

    graphs: int
    dags: frozenset[str]
    errors: dict[str, str]
    seconds: float
    longest: float
    size: float

    @property
    def whole(self) -> bool:
        """Whether every DAG is there."""
        return len(self.dags) == self.graphs * DAGS_OF_A_GRAPH and not self.errors

    def __str__(self) -> str:
        """Return the figures in one line."""
        expected = self.graphs * DAGS_OF_A_GRAPH
        return (
            f"{self.graphs} graphs: {len(self.dags)} of {expected} DAGs, {len(self.errors)} import errors, "
            f"{self.seconds:.1f} s in all, slowest file {self.longest:.1f} s, {self.size / 1000:.1f} kB a graph"
        )


def parsed(graphs: int, directory: Path, *, apart: int) -> Fleet:
    """Let a DAG processor parse the DAGs of many graphs once.

    Args:
        graphs: how many.
        directory: empty; all that is made is below it.
        apart: number of graphs that have a DAG file each; one file makes the DAGs of the others.

    Raises:
        subprocess.CalledProcessError: Airflow failed; its log is ``airflow.log``.
    """
    own, shared, dags = directory / "apart", directory / "graphs", directory / "dags"
    for folder in (own, shared, dags):
        folder.mkdir(parents=True)
    for number in range(graphs):
        name, folder = f"graph_{number:03}", own if number < apart else shared
        spec_file(folder, "s3://fleet", name, nights=NIGHTS)
    if apart:
        write_dag_files(own, str(dags))
    if apart < graphs:
        write_dag_file(str(dags), graphs=shared)
    environment = _environment(directory / "home", dags)
    with (directory / "airflow.log").open("ab") as log:
        _airflow(["db", "migrate"], environment, log)
        started = time.monotonic()
        _airflow(["dag-processor", "--num-runs", "1"], environment, log)
        seconds = time.monotonic() - started
    return _found(directory / "home" / "airflow.db", graphs, seconds)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep CPUs busy."""
    spinning = [subprocess.Popen(_SPIN) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def take_picture(directory: Path, picture: Path) -> None:
    """Take a picture of Airflow's list of a fleet's DAGs.

    Args:
        directory: that of ``parsed``.
        picture: PNG file to write.

    Raises:
        TimeoutError: the API server did not answer; its log is ``airflow.log``.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = f"http://127.0.0.1:{port}"
    environment = _environment(directory / "home", directory / "dags") | {
        "AIRFLOW__API__BASE_URL": site,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    }
    command = [sys.executable, "-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port)]
    with (directory / "airflow.log").open("ab") as log:
        server = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"{site}/api/v2/version", server)
        with chromium() as browser:
            tab = browser.new_page(viewport={"width": 1280, "height": 720})
            tab.goto(f"{site}/dags?name_pattern=reembed")
            tab.get_by_title("Show table view").click()
            tab.get_by_text("reembed_graph_000").first.wait_for()
            tab.wait_for_load_state("networkidle")
            tab.screenshot(path=picture)
    finally:
        server.terminate()
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - the server of this module
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise TimeoutError(f"{url}: no answer; see airflow.log")


def _environment(home: Path, dags: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PBG_"))}
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "operators"))),
    }


def _airflow(words: Sequence[str], environment: dict[str, str], log: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "airflow", *words],
        env=environment,
        cwd=environment["AIRFLOW_HOME"],
        stdout=log,  # type: ignore[arg-type] # a file
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_SECONDS,
        check=True,
    )


def _found(database: Path, graphs: int, seconds: float) -> Fleet:
    with closing(sqlite3.connect(database)) as connection:
        dags = dict(connection.execute("select dag_id, last_parse_duration from dag where not is_stale"))
        stored = dict(connection.execute("select dag_id, length(cast(data as blob)) from serialized_dag"))
        errors = dict(connection.execute("select filename, stacktrace from import_error"))
    return Fleet(
        graphs=graphs,
        dags=frozenset(dags.keys() & stored.keys()),
        errors=errors,
        seconds=seconds,
        longest=max((each or 0.0 for each in dags.values()), default=0.0),
        size=sum(stored.values()) / graphs,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; return 0 if every DAG is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--layout", choices=("files", "folder"), default="files", help="of the DAG files")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep CPUs busy meanwhile")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="PNG of Airflow's list of the DAGs")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory, busy(options.busy):
        fleet = parsed(options.graphs, Path(directory), apart=options.graphs if options.layout == "files" else 0)
        if options.picture is not None:
            take_picture(Path(directory), options.picture.resolve())
    for file, error in sorted(fleet.errors.items()):
        sys.stdout.write(f"{file}: {re.sub(r'[^ -~]+', ' ', error)[-300:]}\n")
    sys.stdout.write(f"{fleet}\n")
    return 0 if fleet.whole else 1


if __name__ == "__main__":
    sys.exit(main())
