"""The commands ``python -m examples.stack demo|up|down|status``.

``make demo`` and ``make down`` call them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from examples.stack.airflow import REPOSITORY, AirflowStackError
from examples.stack.api import AirflowApiError
from examples.stack.demo import BUCKET, DemoError, demo_graphs, farewell, headline, run_demo
from examples.stack.object_store import ObjectStoreError
from examples.stack.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED = 130


def main() -> int:
    """Run the given command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.stack", description="A real S3 server and a real Airflow."
    )
    parser.add_argument("command", choices=("demo", "up", "down", "status"))
    parser.add_argument("--directory", type=Path, default=REPOSITORY / ".demo", help="where all they write lies")
    parser.add_argument("--graphs", type=Path, help="folder of graph specs; by default one with WordNet alone")
    options = parser.parse_args()
    stack = Stack(options.directory, graphs=options.graphs or demo_graphs(options.directory))
    try:
        return {"demo": demo, "up": up, "down": down, "status": status}[options.command](stack)
    except (DemoError, ObjectStoreError, AirflowStackError, AirflowApiError, TimeoutError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nInterrupted. What was started still runs; `make down` stops it.", file=sys.stderr)
        return INTERRUPTED
    return 1


def demo(stack: Stack) -> int:
    """Run the demo and print its result."""
    with only_one(stack.directory):
        result = run_demo(stack)
    path = stack.directory / "result.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(farewell(result)))
    print(f"RESULT {json.dumps(headline(result) | {'file': str(path)})}")
    return 0


def up(stack: Stack) -> int:
    """Start the services on the existing data."""
    with only_one(stack.directory):
        stack.stop()
        stack.mark_graphs()
        stack.start_store(BUCKET)
        stack.start_airflow(print)
    print(f"S3: bucket {BUCKET}; `. {shlex.quote(str(stack.shell))}` gives a shell its endpoint and keys")
    print(json.dumps(stack.login()))
    return 0


def down(stack: Stack) -> int:
    """Stop everything, also the processes of a killed demo."""
    print(f"stopped {stack.stop()} processes")
    return 0


def status(stack: Stack) -> int:
    """Print the running services; success if there are any."""
    found = stack.status()
    for name, state in found.items():
        print(f"{name}: {state}")
    if not found:
        print("nothing runs")
    return 0 if found else 1


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Refuse to start while another start is at work.

    A killed one does not count.

    Raises:
        DemoError: there is one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo is starting or running in {directory}; wait for it, or stop it") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


if __name__ == "__main__":
    sys.exit(main())
