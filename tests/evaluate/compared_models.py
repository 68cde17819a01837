"""Compared models of a paired comparison."""

from __future__ import annotations

import numpy as np

from pbg_tasks.evaluate.compared_model import ComparedModel
from pbg_tasks.formats.embeddings import embeddings_file_name, write_embeddings
from tests.evaluate.graphs import INFO


def compared_model(graph, other, directory, *, unknown, relations=None, trained=()):
    """Return another graph's model, to be compared with a graph's.

    It does not know the last entities of each partition.
    """
    directory.mkdir()
    paths, rows, known = {}, {}, {}
    for entity, sizes in graph.counts.items():
        rows[entity] = [size - unknown for size in sizes]
        known[entity] = np.concatenate([np.arange(size) < size - unknown for size in sizes])
        for part, count in enumerate(rows[entity]):
            first = graph.bases[entity][part]
            path = paths[entity, part] = directory / embeddings_file_name(entity, part, 1)
            own = other.embeddings[entity][first : first + count]
            write_embeddings(path, own, None, lr=0.1, iteration=INFO, config=other.config)
    relations = np.arange(2) if relations is None else np.array(relations)
    return ComparedModel(other.config, other.params, paths, rows, known, relations, 2, dict(trained))
