"""Edges in buckets, for a training in memory."""

from __future__ import annotations

import hashlib

import numpy as np

from pbg_tasks.checkpoint import claim, open_committed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.data.partitions import partition_keys
from pbg_tasks.training.edge_chunks import EdgeChunkTrainer
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.iteration_plan import IterationPlan
from pbg_tasks.training.local_work import LocalWork
from pbg_tasks.training.loop import train_iterations
from pbg_tasks.training.starting_point import StartingPoint

PARTITIONS, ROWS = 4, 25

SPEC = "a" * 64


class Buckets:
    """Files of random edges, one a bucket; (1, 2) is empty."""

    def __init__(self, directory, partitions=PARTITIONS):
        self._directory = directory
        directory.mkdir()
        random = np.random.default_rng(0)
        for lhs in range(partitions):
            for rhs in range(partitions):
                count = 0 if (lhs, rhs) == (1, 2) else 60
                ends = (random.integers(0, ROWS, count) for _ in range(2))
                write_edges(directory / edge_file_name(lhs, rhs), EdgeList(*ends, np.zeros(count, np.int64)))

    def local(self, _edge_path_idx, bucket):
        return self._directory / edge_file_name(*bucket)


def make_config(**changes):
    return ConfigSchema.model_validate(
        {
            "entities": {"n": {"num_partitions": PARTITIONS}},
            "relations": [{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
            "dimension": 4,
            "num_epochs": 3,
            "batch_size": 20,
            "num_batch_negs": 10,
            "num_uniform_negs": 10,
            "lr": 0.1,
            "eval_fraction": 0.1,
            "entity_path": "entities",
            "edge_paths": ["edges"],
            "checkpoint_path": "checkpoint",
        }
        | changes
    )


def train(config, buckets, store, scratch, *, engine=None, edges=None, anchor=None, stopping=lambda: False):
    scratch.mkdir(exist_ok=True)
    with claim(store, "", SPEC) as writer:
        counts = dict.fromkeys(partition_keys(config), ROWS)
        files = writer.files if writer.files.names else None
        return train_alone(
            config,
            writer,
            edges or FiledEdges(buckets),
            StartingPoint(config, counts, files, grows=False, seed=7, scratch=scratch),
            scratch,
            engine=engine,
            anchor=anchor,
            stopping=stopping,
        )


def train_alone(config, writer, edges, start, scratch, *, engine=None, **options):
    """Train what is not committed in one process; return the figures."""
    plan, engine = IterationPlan(config, edges, seed=7), engine or TorchEngine(config, 1)
    work = LocalWork(
        config, engine=engine, edges=edges, start=start, writer=writer, iteration_plan=plan, scratch=scratch, **options
    )
    train_iterations(plan.plan[writer.version :], work, EdgeChunkTrainer(config, engine, 7))
    return work.commits.figures


def objects(store):
    """Return the digests of the newest version's data sets, without configs."""
    import h5py

    manifest, _ = open_committed(store, "")
    digests = {}
    for name in sorted(manifest.objects):
        with h5py.File(f"{store.url}/{name}") as file:
            found = []
            file.visititems(lambda path, item, found=found: found.append((path, item)))
            data = [(path, item[()].tobytes()) for path, item in found if isinstance(item, h5py.Dataset)]
        digests[name] = hashlib.sha256(repr(data).encode()).hexdigest()
    return manifest.version, digests
