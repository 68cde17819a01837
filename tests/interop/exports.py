"""Exports of both programs, and checks of their rows."""

from __future__ import annotations

import numpy as np


def check_rows(path, expected, keys):
    """Check that a TSV file has these vectors under these keys.

    Numbers have nine decimals.
    """
    cells = [line.split("\t") for line in path.read_text().splitlines()]
    found = {tuple(row[:keys]): np.array(row[keys:], np.float64) for row in cells}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert np.abs(found[key] - value).max() < 1e-6, key


def exported_entities(values):
    """Return every entity's name and embedding.

    The global embedding of its type is added.
    """
    found = {}
    for name, embeddings in values.items():
        if name.startswith("embeddings_"):
            _, entity, partition = name.split("_")
            shift = values.get(f"entities/{entity}/global_embedding", 0)
            found |= {(f"{entity} {partition}.{n} é",): vector + shift for n, vector in enumerate(embeddings)}
    return found
