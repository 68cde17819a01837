"""Tasks that only read and write documents and files start without torch, which takes most of their time."""

from __future__ import annotations

import subprocess
import sys

from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pbg_tasks.tasks.nightly.chain import run_task
for name in sys.argv[2:]:
    run_task(name, sys.argv[1])
"""


def test_light_tasks_of_first_night_need_no_torch(place):
    place.snapshot("d1", ring(50))
    place.write_spec()
    url = plan(place.spec, "d1")["run"]
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
