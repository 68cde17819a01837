from __future__ import annotations

import subprocess
import sys

import pytest

import pbg_tasks


def test_package_and_model_import_no_torch():
    """A scheduler has no torch, and a notebook waits for none."""
    script = (
        "import sys, pbg_tasks; before = set(sys.modules); pbg_tasks.Model; "
        "print('torch' in before, 'pbg_tasks.api' in before, 'torch' in sys.modules, 'pbg_tasks.api' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert found.split() == ["False", "False", "False", "True"]


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'modle'"):
        pbg_tasks.modle  # noqa: B018 - the look-up is the test


def test_package_is_imported_in_two_seconds():
    """The figure is CPU time of a process of its own."""
    script = "import time, pbg_tasks; print(time.process_time())"
    tries = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(2)]
    assert min(tries) < 2
