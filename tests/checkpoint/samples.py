"""Small checkpoints that tests of several folders commit."""

from __future__ import annotations

from pbg_tasks.checkpoint import Iteration

SPEC = "a" * 64
PREFIX = "runs/r/checkpoint"


def iteration(number, epochs=9):
    return Iteration(
        number=number,
        epoch_idx=number - 1,
        num_epochs=epochs,
        edge_path_idx=0,
        num_edge_paths=1,
        edge_chunk_idx=0,
        num_edge_chunks=1,
    )


def commit(writer, number, content=b"vectors"):
    name = f"embeddings_all_0.v{number}.h5"
    return writer.commit({name: writer.put(name, content)}, iteration=iteration(number), edges=10)
