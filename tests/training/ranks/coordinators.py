"""A coordinator that has begun an iteration, and reports of servers."""

from __future__ import annotations

from contextlib import contextmanager

from pbg_tasks.checkpoint import claim
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.data.partitions import partition_keys
from pbg_tasks.training.iteration_plan import IterationPlan
from pbg_tasks.training.ranks.coordinator import Coordinator
from tests.training.buckets import ROWS, SPEC, Buckets, make_config

PARTITIONS = 4


@contextmanager
def coordinated(tmp_path, share):
    """A coordinator that has begun the first iteration, and its writer."""
    config = make_config(num_partition_servers=-1, num_epochs=1)
    iteration_plan = IterationPlan(config, FiledEdges(Buckets(tmp_path / "edges", PARTITIONS)), seed=0)
    with claim(LocalStore(tmp_path / "store"), "", SPEC, patience=0.1) as writer:
        found = Coordinator(
            config,
            dict.fromkeys(partition_keys(config), ROWS),
            writer,
            members=2,
            share=share,
            share_every=1000.0,
            cold=False,
        )
        found.begin(
            iteration_plan.plan[0],
            iteration_plan.edge_chunks(iteration_plan.plan[0], scattered=True),
            iteration_plan.order,
        )
        yield found, writer
        found.wait_shared(10)


def stored(partition, *, lease):
    """Return the message of a partition server about a stored partition."""
    there = {"name": f"partial/{partition}", "record": {"sha256": "0" * 64, "size": 0}, "lease": lease}
    return {"name": f"embeddings_n_{partition}.v1.h5", "object": there}
