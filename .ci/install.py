"""Installation by pip with a line of progress every few seconds.

    python .ci/install.py PYTHON WORD... (arguments of `pip install`)

pip alone is silent for minutes, or prints some hundred lines. Where it fails, its last lines are shown.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

EVERY = 5.0
_TAIL = 25
_FETCHED = re.compile(r"^\s*(?:Downloading|Using cached) (\S+?)(?: \((\d+(?:\.\d+)?) (kB|MB|GB)\))?$")
_MEGABYTES = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


class Progress:
    """State of an installation, by pip's output."""

    def __init__(self, total: int) -> None:
        self.total, self.fetched, self.megabytes = total, 0, 0.0
        self.doing = "resolving"
        self.started = time.monotonic()

    def read(self, line: str) -> None:
        """Take a line of pip's output into account."""
        if found := _FETCHED.match(line):
            name, size, unit = found.groups()
            if not name.endswith(".metadata"):
                self.fetched += 1
                self.megabytes += float(size or 0) * _MEGABYTES.get(unit or "", 0.0)
                self.doing = f"{self.fetched} of {self.total} packages, {self.megabytes:.0f} MB"
        elif line.startswith("Installing collected"):
            self.doing = f"unpacking {max(self.total, self.fetched)} packages"

    def line(self) -> str:
        """Return the state as a line."""
        minutes, seconds = divmod(round(time.monotonic() - self.started), 60)
        return f"  {minutes}:{seconds:02d}  {self.doing}"


def packages(arguments: list[str]) -> int:
    """Count the packages that pip has to install."""
    files = [Path(after) for before, after in itertools.pairwise(arguments) if before == "-r"]
    named = {line.partition("==")[0] for file in files for line in file.read_text().splitlines() if line[:1].isalnum()}
    return len(named) or 1


def main() -> int:
    """Run pip; return its exit status."""
    python, *arguments = sys.argv[1:]
    progress, last = Progress(packages(arguments)), deque[str](maxlen=_TAIL)
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(EVERY):
                print(progress.line(), flush=True)

        reporter = threading.Thread(target=report)
        reporter.start()
        try:
            for line in pip.stdout or ():
                last.append(line)
                progress.read(line.rstrip())
        finally:
            ended.set()
            reporter.join()
    if pip.returncode:
        print("".join(last), file=sys.stderr)
    else:
        print(f"{progress.line()}: done", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
