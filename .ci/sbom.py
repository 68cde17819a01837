"""Bills of materials (CycloneDX JSON) of each release, from locks.

    make sbom        # build/sbom/{python,train,airflow,worker,spark,store}.cdx.json

``cyclonedx-py`` does the work; this joins the locks of an image for it. What an image has from its base, Debian's
packages and Python itself, is not in it: the base's own bill, by its digest, lists that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from locks import RELEASED, REPOSITORY, read


def write(name: str, folder: Path, *, validate: bool = True) -> Path:
    """Write the bill of one release and return its path.

    Raises:
        CalledProcessError: the tool failed, or what it wrote is no CycloneDX.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.cdx.json"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "cyclonedx_py",
        "requirements",
        "-",
        f"--output-file={target}",
        "--output-format=JSON",
        "--validate" if validate else "--no-validate",
    ]
    command += ["--output-reproducible", f"--pyproject={REPOSITORY / 'pyproject.toml'}"]
    pins = read(*RELEASED[name]).values()
    subprocess.run(command, input="\n".join(pin.requirement for pin in pins), text=True, check=True)
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[*RELEASED])
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "sbom")
    parser.add_argument("--no-validate", action="store_true", help="trust the tool, which is ten times as fast")
    given = parser.parse_args()
    for each in given.names:
        print(write(each, given.into, validate=not given.no_validate))
