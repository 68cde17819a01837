"""Files of TensorFlow's Embedding Projector, with their config.

Each type has ``{type}/tensors.tsv`` and ``{type}/metadata.tsv``. A browser shows some ten thousand points; of a larger
type every n-th row is taken, from its first to its last.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from pbg_tasks.publish.exchange.delimited import number_lines
from pbg_tasks.publish.exchange.manifest import TypeRecord
from pbg_tasks.publish.exchange.names import TABS_AND_BREAKS, writable

if TYPE_CHECKING:
    from pydantic import JsonValue

    from pbg_tasks.config.exports import ProjectorOptions
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.outbox import Outbox

CONFIG = "projector_config.pbtxt"


def write(contents: Contents, outbox: Outbox, options: ProjectorOptions) -> dict[str, JsonValue]:
    """Write points and names of each type, and ``projector_config.pbtxt``.

    Raises:
        FormatError: a name holds a tab or a line break, or an embedding is damaged.
    """
    entries = []
    of: dict[str, JsonValue] = {}
    for rows in contents.entities.values():
        tensors, metadata = f"{rows.entity}/tensors.tsv", f"{rows.entity}/metadata.tsv"
        count = _write_points(rows, outbox, tensors, metadata, options)
        outbox.types[rows.entity] = TypeRecord(rows=count, dimension=rows.dimension, files=(tensors, metadata))
        of[rows.entity] = len(rows)
        fields = {"tensor_name": rows.entity, "tensor_path": tensors, "metadata_path": metadata}
        lines = [f"  {field}: {json.dumps(value)}" for field, value in fields.items()]
        shape = [f"  tensor_shape: {length}" for length in (count, rows.dimension)]
        entries.append("\n".join(["embeddings {", *lines, *shape, "}\n"]))
    outbox.path(CONFIG).write_text("".join(entries), encoding="utf-8")
    return {"sampled_from": of}


def _write_points(rows: EntityRows, outbox: Outbox, tensors: str, metadata: str, options: ProjectorOptions) -> int:
    step, count = max(1, math.ceil(len(rows) / options.limit)), 0
    start = 0
    with (
        outbox.path(tensors).open("w", encoding="utf-8", newline="") as points,
        outbox.path(metadata).open("w", encoding="utf-8", newline="") as labels,
    ):
        for block in rows.blocks():
            chosen = slice(-start % step, None, step)
            start += len(block.names)
            names = writable(block.names[chosen], TABS_AND_BREAKS, escape=options.escape, form="projector")
            points.writelines(f"{line}\n" for line in number_lines(block.vectors[chosen], "\t"))
            labels.writelines(f"{name}\n" for name in names)
            count += len(names)
    return count
