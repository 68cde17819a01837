"""Tasks that start without the libraries they do not need.

Importing those would take most of their time.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

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
    url = plan(place.spec, "d2")["run"]
    for tasks, libraries in (
        ("validate", "torch,h5py,pbg_tasks.prepare.spark"),
        ("partition", "torch,h5py,fsspec,pbg_tasks.prepare.spark"),
        ("bucket", "torch,fsspec,pbg_tasks.prepare.spark"),
        ("train", ""),
        ("preserve", "torch,duckdb,pyarrow,h5py,numpy"),
        ("eval", "pbg_tasks.prepare.spark"),
        ("drift,gate,publish", "torch,duckdb,pyarrow,h5py,numpy"),
    ):
        if libraries:
            subprocess.run([sys.executable, "-c", WITHOUT, url, tasks, libraries], check=True)
        else:
            run_task(tasks, url)
