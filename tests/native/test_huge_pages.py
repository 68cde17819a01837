"""Large tables and buffers in huge pages.

The kernel is advised to use them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.memory import empty_rows
from pbg_tasks.native import library
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.native import NativeEngine
from tests.model.configs import one_type

EDGES = 3000
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no transparent huge pages"
)


def advised():
    """Yield address ranges of mappings advised to use huge pages."""
    for mapping in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]:
        if " hg" in mapping.rpartition("VmFlags:")[2]:
            first, end = mapping.split(maxsplit=1)[0].split("-")
            yield range(int(first, 16), int(end, 16))


def test_tables_of_embeddings_are_in_huge_pages():
    table = empty_rows(100_000, 50)
    middle = table[len(table) // 2].ctypes.data  # the mapping begins and ends within pages of others
    assert any(middle in addresses for addresses in advised())


def advised_by_a_step():
    """Return the additional bytes advised during a batch.

    The largest buffer has the scores of its one chunk.
    """
    engine, ends = NativeEngine(one_type(batch_size=EDGES, num_batch_negs=EDGES), 1), np.arange(EDGES)
    table = Table.random(EDGES, 4, 1.0, torch.Generator().manual_seed(0))
    edges = EdgeList(ends, ends[::-1].copy(), np.zeros(EDGES, np.int64))
    before = sum(map(len, advised()))
    engine.train_bucket(edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0))
    return sum(map(len, advised())) - before


@pytest.mark.rotated(3)
@pytest.mark.skipif(library() is None, reason="no native library")
def test_large_native_buffers_use_huge_pages():
    """Measure in a process of its own.

    The memory used by other tests comes and goes.
    """
    command = [sys.executable, "-c", f"from {__name__} import advised_by_a_step; print(advised_by_a_step())"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert int(told) >= 4 * EDGES**2
