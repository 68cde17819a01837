"""Models of one space without training, and their exports.

``python -m tests.sinks.spaces SOURCE DESTINATION OPTIONS`` exports one, to be killed meanwhile; each batch is a line,
and the last line is what was measured.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from pbg_tasks.config.contract import Contract
from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.publish.sinks.lance import LanceTables
from pbg_tasks.tasks.exchange import fill as filling
from pbg_tasks.tasks.exchange.export import export

DIMENSION = 8


def night(root, rows, *, comparator="cos", dimension=DIMENSION):
    """Write a model of one type whose vectors are given, by name."""
    from tests.tasks.exchanges import model  # brings torch, which an export does without

    names = list(rows)
    data = model(
        root,
        comparator=comparator,
        dimension=dimension,
        entities={"user": {"num_partitions": 1}},
        relations=[{"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"}],
        sizes={"user": len(names)},
    )
    data.rename("user", 0, names)
    data.rewrite("user", 0, np.array(list(rows.values()), np.float32))
    return data


def in_space(patch, space="s"):
    """Let models be of one space, known by their files."""
    real = filling.describe

    def describe(found):
        root = Path(found.checkpoint.url)
        files = sorted([*root.glob("embeddings_*"), *(root.parent / "entities").iterdir()])
        digest = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()
        return real(found).model_copy(update={"manifest_sha256": digest, "contract": Contract(space=space)})

    patch(filling, "describe", describe)


def fill(data, destination, **options):
    """Export a model; return what was measured."""
    more = {key: options.pop(key) for key in ("min_recall", "neighbors") if key in options}
    asked = ExportOptions(options=options, **more)
    return export("lancedb", str(data.checkpoint), str(destination), options=asked)["measured"]


def main(checkpoint, destination, options):
    """Export a model, and print a line before each batch."""

    def told(method):
        def called(*args):
            sys.stdout.write("batch\n")
            sys.stdout.flush()
            return method(*args)

        return called

    in_space(setattr)
    for name in ("add", "replace"):
        setattr(LanceTables, name, told(getattr(LanceTables, name)))
    done = export("lancedb", checkpoint, destination, options=ExportOptions(options=json.loads(options)))
    sys.stdout.write(json.dumps(done["measured"]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
