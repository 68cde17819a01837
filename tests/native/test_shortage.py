"""An engine that continues after a batch too large for memory.

It trains the next ones unaffected.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from pbg_tasks.native import library

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no native library"),
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are another thing elsewhere"),
]

# The scores of the large batch, one chunk, take 1.6 GB; by then all of its rows are marked.
PROGRAM = """
import resource
from pathlib import Path

import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.errors import ResourceError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.data.tables import Table

ENTITIES, LARGE, SPARE = 30_000, 20_000, 500 << 20
config = ModelConfig.model_validate({
    "entities": {"e": {"num_partitions": 1}},
    "relations": [{"name": "r", "lhs": "e", "rhs": "e", "operator": "translation"}],
    "dimension": 8, "batch_size": LARGE, "num_batch_negs": LARGE, "num_uniform_negs": 10, "comparator": "dot",
})


def train(engine, edges):
    table = Table.random(ENTITIES, 8, 1.0, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(edges)
    ends = (torch.randint(ENTITIES, (edges,), generator=generator).numpy() for _ in range(2))
    chosen = EdgeList(*ends, torch.zeros(edges, dtype=torch.int64).numpy())
    engine.train_bucket(chosen, {"e": table}, {"e": table}, generator=generator)
    return table


engine = NativeEngine(config, 1)
train(engine, 10)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
usual = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE, usual[1]))
try:
    train(engine, LARGE)
except ResourceError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, usual)
again = train(engine, 1_000)
other = NativeEngine(config, 1)
train(other, 10)
fresh = train(other, 1_000)
print("same" if torch.equal(again.embeddings, fresh.embeddings) else "another")
"""


def test_too_large_batch_leaves_no_trace():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told, found = done.stdout.splitlines()
    assert told.startswith("engine native: no memory for the gradients of a batch")
    assert found == "same"
