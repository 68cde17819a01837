"""Edge lists and configs that tests import."""

from __future__ import annotations

import hashlib

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.tasks.directory.importing import EdgeLists
from pbg_tasks.tasks.files import IMPORT_MANIFEST

TSV = EdgeLists("tsv", "0", "2", "1")


class Import:
    """A config, and edge lists to import with it."""

    def __init__(self, root):
        self.root = root

    def config(self, partitions=2, paths=("train",), **changes):
        settings = {
            "entities": {"n": {"num_partitions": partitions}},
            "relations": [{"name": "all", "lhs": "n", "rhs": "n", "operator": "diagonal"}],
            "dynamic_relations": True,
            "global_emb": False,
            "dimension": 4,
            "entity_path": str(self.root / "entities"),
            "edge_paths": tuple(str(self.root / path) for path in paths),
            "checkpoint_path": str(self.root / "model"),
            "num_epochs": 1,
            "workers": 1,
            "eval_fraction": 0.0,
        }
        return ConfigSchema.model_validate(settings | changes)

    def write(self, rows, name="train.tsv"):
        path = self.root / name
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
        return str(path)

    def forget_records(self, folder):
        """Make a folder look as if another program wrote it."""
        (self.root / folder / IMPORT_MANIFEST).unlink()

    def names(self, partition):
        return read_entity_names(self.root / "entities", "n", partition)

    def digests(self):
        files = sorted(path for folder in ("entities", "train") for path in (self.root / folder).glob("[a-z]*.*"))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def ring(count, first=0):
    return [(f"e{first + i}", f"r{i % 2}", f"e{first + (i + 1) % count}") for i in range(count)]
