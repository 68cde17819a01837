"""A small graph that a model can learn.

Its nodes are numbers on a ring, and their colours.
"""

from __future__ import annotations

from benchmarks.quality.data import DataSet, line_digest

CONFIG = """\
entity_path: data/ring
edge_paths: [data/ring/train, data/ring/valid, data/ring/test]
checkpoint_path: model/ring
entities: {all: {num_partitions: 1}}
relations: [{name: all_edges, lhs: all, rhs: all, operator: complex_diagonal}]
dynamic_relations: true
dimension: 16
global_emb: false
comparator: dot
loss_fn: softmax
lr: 0.1
num_epochs: 4
batch_size: 100
num_batch_negs: 0
num_uniform_negs: 60
eval_fraction: 0
workers: 1
"""
SIZE = 60
STEPS = {"next": 1, "third": 3, "tenth": 10}


def write_ring(directory):
    """Write dated triples in three splits; return the data set."""
    rows = [
        f"n{number}\t{step}\tn{(number + by) % SIZE}\t2014-01-{1 + number % 3:02d}"
        for number in range(SIZE)
        for step, by in STEPS.items()
    ]
    splits = {"train.tsv": [], "valid.tsv": [], "test.tsv": []}
    for place, row in enumerate(rows):
        splits["valid.tsv" if place % 10 == 4 else "test.tsv" if place % 10 == 9 else "train.tsv"].append(row)
    for name, lines in splits.items():
        (directory / name).write_text("\n".join(lines) + "\n")
    return DataSet("ring", {name: line_digest(directory / name) for name in splits})
