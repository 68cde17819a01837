"""Relations in an export: their index, and names of parameters.

The index has the names and operators of the relations.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import SIDES, operator_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from pbg_tasks.model.parameters import Side
    from pbg_tasks.publish.exchange.contents import Contents
    from pbg_tasks.publish.exchange.outbox import Outbox

FOLDER = "_relations"
INDEX = f"{FOLDER}/relations.json"


class RelationParameter(NamedTuple):
    """One parameter of one relation's operator.

    Attributes:
        relation: its name.
        side: of the ends that the operator transforms.
        parameter: name within the operator.
        values: float32, of the operator's shape.
    """

    relation: str
    lhs: str
    rhs: str
    operator: str
    side: Side
    parameter: str
    values: np.ndarray


def parameter_key(path: str) -> str:
    """Return the name of a shared parameter in an export.

    It is ``relations.{i}.{side}.{name}``, where PBG's path has slashes.
    """
    return path.replace("/operator/", "/").replace("/", ".")


def relation_parameters(contents: Contents) -> Iterator[RelationParameter]:
    """Walk the parameters of every relation; an operator without parameters has none."""
    config, families = contents.config, Families(contents.config, len(contents.relations))
    for number, name in enumerate(contents.relations):
        index = int(families.first[number])
        schema = config.relations[index]
        for side in SIDES:
            prefix = operator_path(index, side, "")
            for path, value in contents.params.items():
                if path.startswith(prefix):
                    own = value[families.row[number]] if config.has_two_operators(schema) else value
                    parameter = path.removeprefix(prefix)
                    yield RelationParameter(name, schema.lhs, schema.rhs, schema.operator, side, parameter, own)


def write_relations(contents: Contents, outbox: Outbox) -> None:
    """Write ``_relations/relations.json``, the index of the relations.

    For each relation it has the name, types, operator and the place of its parameters: ``index`` is the i in the names
    of its parameters, and ``row`` its row on their first axis, or null when the parameters are its own.
    """
    config, families = contents.config, Families(contents.config, len(contents.relations))
    listed = []
    for number, name in enumerate(contents.relations):
        index = int(families.first[number])
        schema = config.relations[index]
        row = int(families.row[number]) if config.has_two_operators(schema) else None
        entry = {"name": name, "lhs": schema.lhs, "rhs": schema.rhs, "operator": schema.operator}
        listed.append({**entry, "index": index, "row": row})
    outbox.path(INDEX).write_text(json.dumps(listed, indent=1), encoding="utf-8")
