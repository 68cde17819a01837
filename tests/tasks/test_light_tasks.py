"""Tasks that start without the libraries they do not need.

Importing those would take most of their time.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

PLAN = """
import sys
sys.modules |= dict.fromkeys("torch,h5py,botocore,urllib.request,pbg_tasks.prepare.spark".split(","))
from pathlib import Path
from pbg_tasks.tasks.nightly.plan import plan
plan(Path(sys.argv[1]), "d2")
"""
WITHOUT = """
import sys
run, tasks, libraries = sys.argv[1:]
sys.modules |= dict.fromkeys(libraries.split(","))
from pbg_tasks.tasks.nightly.chain import run_task
for name in tasks.split(","):
    run_task(name, run)
"""


@pytest.mark.rotated(3)
@pytest.mark.parametrize("before", [[], ["d1"]], ids=["first night", "second night"])
def test_light_tasks_need_few_libraries(place, before):
    place.write_spec()
    for day in before:
        place.snapshot(day, ring(50))
        run_chain(place.spec, day)
    place.snapshot("d2", ring(50))
    subprocess.run([sys.executable, "-c", PLAN, str(place.spec)], check=True)
    url = plan(place.spec, "d2")["run"]
    never = "yaml,urllib.request"
    few = f"{never},botocore,pbg_tasks.prepare.spark"
    for tasks, libraries in (
        ("validate", f"{few},torch,h5py,pbg_tasks.tasks.nightly.partition"),
        ("partition", f"{few},torch,h5py,fsspec,pyarrow.parquet"),
        ("bucket", f"{few},torch,fsspec,pyarrow.parquet"),
        ("train", ""),
        ("preserve", f"{never},torch,duckdb,pyarrow,h5py,numpy"),
        ("eval", "yaml,botocore,pyarrow.parquet,pyarrow.compute,pbg_tasks.datasets,pbg_tasks.prepare.spark"),
        ("drift,gate,publish", f"{never},torch,duckdb,pyarrow,h5py,numpy"),
    ):
        if libraries:
            subprocess.run([sys.executable, "-c", WITHOUT, url, tasks, libraries], check=True)
        else:
            run_task(tasks, url)


def test_command_searches_no_packages_for_pydantic_plugins():
    code = (
        "import sys, importlib.metadata as packages; packages.entry_points = None; sys.argv = ['pbg', 'schema']; "
        "from pbg_tasks.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["title"] == "GraphSpec"
