"""One file of safetensors: ``embeddings.safetensors``.

Its tensors are ``entities.{type}.{partition}`` and ``relations.{i}.{side}.{name}``. The format is a length, a JSON
header and the tensors' bytes, so it is written here as a stream; the library would hold all of it in memory. It has no
place for names: ``{type}.json`` lists those of a type over all its partitions.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.publish.exchange.names import names_file
from pbg_tasks.publish.exchange.relations import parameter_key, write_relations

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from pydantic import JsonValue

    from pbg_tasks.config.exports import OptionsOfAll
    from pbg_tasks.publish.exchange.contents import Contents
    from pbg_tasks.publish.exchange.outbox import Outbox

FILE = "embeddings.safetensors"
_ALIGNMENT = 8


def write(contents: Contents, outbox: Outbox, options: OptionsOfAll) -> dict[str, JsonValue]:  # noqa: ARG001 - no option
    """Write all tensors into one file, and names for each type.

    Raises:
        FormatError: an embedding or a name is damaged.
    """
    with outbox.path(FILE).open("wb") as out:
        _write_header(out, contents)
        for rows in contents.entities.values():
            name = f"{rows.entity}.json"
            with names_file(outbox.path(name)) as names:
                for block in rows.blocks():
                    names.append(block.names)
                    out.write(np.ascontiguousarray(block.vectors, "<f4").data)
            outbox.record(rows, FILE, name)
        for value in contents.params.values():
            out.write(np.ascontiguousarray(value, "<f4").data)
    write_relations(contents, outbox)
    return {}


def _write_header(out: BinaryIO, contents: Contents) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        f"entities.{rows.entity}.{partition}": (count, rows.dimension)
        for rows in contents.entities.values()
        for partition, count in enumerate(rows.counts)
    }
    shapes |= {parameter_key(path): value.shape for path, value in contents.params.items()}
    header = json.dumps(_entries(shapes, contents.config.comparator), separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    out.write(len(header).to_bytes(8, "little") + header)


def _entries(shapes: Mapping[str, tuple[int, ...]], comparator: str) -> dict[str, JsonValue]:
    entries: dict[str, JsonValue] = {"__metadata__": {"comparator": comparator}}
    start = 0
    for name, shape in shapes.items():
        stop = start + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    return entries
