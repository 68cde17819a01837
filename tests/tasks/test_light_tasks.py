"""Tasks that only read and write documents and files start without torch, which takes most of their time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pbg_tasks.tasks.nightly.chain import run_task
for name in sys.argv[2:]:
    run_task(name, sys.argv[1])
"""


@pytest.mark.parametrize("before", [[], ["d1"]], ids=["first night", "second night"])
def test_light_tasks_need_no_torch(place, before):
    place.write_spec()
    for day in before:
        place.snapshot(day, ring(50))
        run_chain(place.spec, day)
    place.snapshot("d2", ring(50))
    url = plan(place.spec, "d2")["run"]
    for names, light in (
        (("validate", "partition", "bucket"), True),
        (("train",), False),
        (("preserve",), True),
        (("eval",), False),
        (("drift", "gate", "publish"), True),
    ):
        if light:
            subprocess.run([sys.executable, "-c", WITHOUT_TORCH, url, *names], check=True)
        for name in () if light else names:
            run_task(name, url)
