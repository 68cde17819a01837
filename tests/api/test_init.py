from __future__ import annotations

import subprocess
import sys

import pytest

import pbg_tasks


def test_notebook_imports_two_names_in_two_seconds():
    """The figure is CPU time of a process of its own."""
    script = (
        "import sys, time, pbg_tasks; lean = not {'torch', 'numpy', 'pbg_tasks.api'} & set(sys.modules); "
        "from pbg_tasks import Model, train; import pbg_tasks.training.loop; "
        "same = pbg_tasks.train is train is pbg_tasks.api.train; "
        "print(lean, same, 'torch' in sys.modules, time.process_time())"
    )
    tries = [subprocess.check_output([sys.executable, "-c", script], text=True).split() for _ in range(2)]
    assert [each[:3] for each in tries] == [["True", "True", "False"]] * 2
    assert min(float(each[3]) for each in tries) < 2


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'modle'"):
        pbg_tasks.modle  # noqa: B018 - the look-up is the test
