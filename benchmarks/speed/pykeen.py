"""Our step on FB15k beside PyKEEN's, where installed.

The mathematics differs, the model is the same.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.speed.engines import available
from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import fb15k
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.formats.entities import read_entity_count, read_relation_count
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_REQUIREMENT = "pykeen==1.11.1"
_INSTALL_SECONDS = 600
_NOTE = (
    "ComplEx, equal dimension, batches of 1000 edges and one thread; PyKEEN trains by LCWA: each edge against all "
    "14,951 entities on its right, we against 1,050 on either side"
)


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare steps.

    Nothing is measured, and the reason is reported, where PyKEEN cannot be installed.
    """
    python = _installed(tools.cache / "pykeen")
    if python is None:
        return []
    config = fb15k(tools.fb15k(), tools.directory / "fb15k")
    entities, variant = Path(config["entity_path"]), ("native" if "native" in available(config) else "torch")
    theirs = tools.worker(
        python,
        "benchmarks.speed.pykeen_side:Training",
        edges=str(Path(config["edge_paths"][0]) / edge_file_name(0, 0)),
        entities=read_entity_count(entities, "all", 0),
        relations=read_relation_count(entities),
        dimension=config["dimension"],
    )
    with tools.ours("benchmarks.speed.steps:Ours", config=config, variants=[variant], workers=1) as ours, theirs:
        sides = {
            "ours": partial(ours, "train", variant=variant, edges=5_000 if quick else 20_000),
            "theirs": partial(theirs, "train", edges=1_000 if quick else 5_000),
        }
        rounds = in_turns(tools.pairs, sides)
    title = f"FB step, {variant}, against PyKEEN"
    return [Measurement.rate(title, "edges/cpu-s", rounds["ours"], rounds["theirs"], note=_NOTE)]


def _installed(home: Path) -> Path | None:
    """Return the interpreter of an environment with PyKEEN.

    It borrows this one's torch. None, with a report of the reason, where that fails.
    """
    python, ready = home / "bin" / "python", home / "ready"
    if ready.exists():
        return python
    venv.create(home, symlinks=True, with_pip=False, clear=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*pip, "--only-binary=:all:", _REQUIREMENT],
            capture_output=True,
            text=True,
            check=True,
            timeout=_INSTALL_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        say(f"pykeen: skipped, it cannot be installed: {error.stderr.strip().rpartition(chr(10))[2]}")
        return None
    except subprocess.TimeoutExpired:
        say(f"pykeen: skipped, it was not installed in {_INSTALL_SECONDS} s")
        return None
    ready.touch()
    return python
