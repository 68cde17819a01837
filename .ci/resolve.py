"""Resolution of the extras for Airflow, with and without constraints.

Nothing is installed. pip must end without trying dozens of versions: within a limit of CPU time, because the clock
counts the machine's other users too. With the constraints it must find the tested Airflow. Without them, what it finds
changes with the index alone, so that has its turn every third day; `--every` resolves both ways.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT = 120.0
EXTRAS = ("airflow", "kubernetes")


def resolve(*options: str) -> tuple[dict[str, str], float, float]:
    """Return versions that pip would install, CPU seconds and seconds.

    Raises:
        RuntimeError: it found none.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    # Not the checkout itself: pip would leave metadata there, half-written at first, for all that runs from it.
    wanted = [*project["dependencies"], *(each for extra in EXTRAS for each in project["optional-dependencies"][extra])]
    started, before = time.monotonic(), _cpu()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), *options, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        if done.returncode:
            raise RuntimeError(f"pip found no versions:\n{done.stderr[-2000:]}")
        found = json.loads(report.read_text())["install"]
    versions = {each["metadata"]["name"]: each["metadata"]["version"] for each in found}
    return versions, _cpu() - before, time.monotonic() - started


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Resolve as today asks; return 1 where a way is wrong."""
    constraints = REPOSITORY / "constraints.txt"
    tested = re.search(r"^apache-airflow==(\S+)$", constraints.read_text(), re.MULTILINE)
    wrong, ways = [], {"constraints.txt": ("--constraint", str(constraints))}
    if "--every" in sys.argv or int(os.environ.get("PBG_ROTATION") or time.time() // 86_400) % 3 == 0:
        ways["bounds alone"] = ()
    for name, options in ways.items():
        versions, cpu, seconds = resolve(*options)
        airflow = versions["apache-airflow"]
        print(f"resolve, {name}: {len(versions)} packages, Airflow {airflow}, {cpu:.0f} s of CPU, {seconds:.0f} s")
        if cpu > LIMIT:
            wrong.append(f"{name}: {cpu:.0f} s of CPU, more than {LIMIT:.0f}: narrow the bounds in pyproject.toml")
        if options and (tested is None or airflow != tested[1]):
            wrong.append(f"{name}: Airflow {airflow} is not the tested one")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
