"""Installation by pip with a line of progress every few seconds.

    python .ci/install.py PYTHON WORD... (arguments of `pip install`)

pip alone is silent for minutes, or prints some hundred lines. Where it fails, its last lines are shown. It uses one
CPU: what locks name without dependencies, with `--no-deps`, is shared among several at once.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EVERY = 5.0
_AT_ONCE = 2
"""Number of pips at once: one more would wait for the same index."""
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

    def follow(self, pip: subprocess.Popen[str]) -> deque[str]:
        """Read the output of a pip; return its last lines."""
        last = deque[str](maxlen=_TAIL)
        for line in pip.stdout or ():
            last.append(line)
            self.read(line.rstrip())
        pip.wait()
        return last

    def line(self) -> str:
        """Return the state as a line."""
        minutes, seconds = divmod(round(time.monotonic() - self.started), 60)
        return f"  {minutes}:{seconds:02d}  {self.doing}"


def locked(arguments: list[str]) -> dict[str, str]:
    """Return the lines of all locks, with hashes, by package."""
    files = [Path(after) for before, after in itertools.pairwise(arguments) if before == "-r"]
    texts = [re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE) for file in files]
    wanted = [each for text in texts for each in re.split(r"\n(?=\S)", text) if each[:1].isalnum()]
    return {each.partition("==")[0]: each.rstrip() + "\n" for each in wanted}


def shares(arguments: list[str], folder: Path) -> list[list[str]]:
    """Return the arguments of each pip; they share the locks' packages."""
    wanted = [*locked(arguments).values()]
    count = min(_AT_ONCE, os.cpu_count() or 1, len(wanted)) if "--no-deps" in arguments else 1
    if count <= 1:
        return [arguments]
    others = [each for before, each in itertools.pairwise(["", *arguments]) if "-r" not in {before, each}]
    files = [folder / f"{number}.lock" for number in range(count)]
    for number, file in enumerate(files):
        file.write_text("".join(wanted[number::count]))
    return [[*others, "-r", str(file)] for file in files]


def main() -> int:
    """Run pip; return its exit status."""
    python, *arguments = sys.argv[1:]
    progress = Progress(len(locked(arguments)) or 1)
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(EVERY):
            print(progress.line(), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        reporter = threading.Thread(target=report)
        reporter.start()
        try:
            pips = [
                subprocess.Popen([*command, *share], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for share in shares(arguments, Path(folder))
            ]
            with ThreadPoolExecutor(len(pips)) as readers:
                last = [*readers.map(progress.follow, pips)]
        finally:
            ended.set()
            reporter.join()
    for pip, lines in zip(pips, last, strict=True):
        if pip.returncode:
            print("".join(lines), file=sys.stderr)
    failed = next((pip.returncode for pip in pips if pip.returncode), 0)
    if not failed:
        print(f"{progress.line()}: done", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
