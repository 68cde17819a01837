"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import pytest

from pbg_tasks.storage import open_store


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))
