"""A small checkpoint directory with awkward contents.

Tests of exports and imports share it.
"""

from __future__ import annotations

import json

import numpy as np

from tests.api.conftest import Trained

ODD = ['say "hi"', "#tag", "日本語", "a:b", "1234567890123456789012345", "%41", "\\n", "<http://x/y>", "'"]


def model(root, **changes):
    """Write a directory of two types whose relations have operators.

    One type has two partitions.
    """
    keys = {
        "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        "relations": [
            {"name": "likes", "lhs": "user", "rhs": "item", "operator": "complex_diagonal"},
            {"name": "knows", "lhs": "user", "rhs": "user", "operator": "translation"},
        ],
        "sizes": {"user": 30, "item": 40},
        "comparator": "dot",
    }
    data = Trained(root, **keys | changes)
    if "item" in data.names:
        rename(data, "item", [*ODD, *data.names["item"][len(ODD) :]])
    return data


def rename(data, entity, names):
    """Give the single partition of a type other names."""
    data.rename(entity, 0, names)
    data.names[entity] = names


def imported(folder, entity):
    """Return the names and vectors of an import."""
    return json.loads((folder / f"{entity}.json").read_text(encoding="utf-8")), np.load(folder / f"{entity}.npy")


def files(folder):
    """List the files of an exported folder, the store's own too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
