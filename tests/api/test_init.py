from __future__ import annotations

import subprocess
import sys

import pytest

import pbg_tasks


def test_package_without_model_imports_no_torch():
    """A scheduler imports the package and has no torch."""
    script = "import sys, pbg_tasks; assert 'torch' not in sys.modules; pbg_tasks.Model; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'modle'"):
        pbg_tasks.modle  # noqa: B018 - the look-up is the test


def test_package_is_imported_in_two_seconds():
    """The figure is CPU time of a process of its own."""
    script = "import time, pbg_tasks; print(time.process_time())"
    tries = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(2)]
    assert min(tries) < 2
