"""Operators as text, as PBG's ``export_to_tsv`` writes them, and global embeddings."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, islice, product
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.model import parameter_order
from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import SIDES, global_path, operator_path
from pbg_tasks.publish.decimals import write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pbg_tasks.config import ModelConfig

_BLOCK_NUMBERS = 1 << 16
_UNSAFE = ("\t", "\n", "\r")


def write_relations_tsv(
    out: BinaryIO, config: ModelConfig, names: Sequence[str], params: Mapping[str, np.ndarray]
) -> int:
    """Write the parameters of every relation's operator.

    A line has name, side, operator, parameter, shape and numbers.

    Args:
        out: file to write to.
        config: of the model.
        names: of the relations, by id.
        params: shared parameters by PBG's path below ``model/``.

    Returns:
        Number of lines; an operator without parameters has none.
    """
    count = 0
    for size, lines in groupby(_parameters(config, names, params), key=lambda line: line[1].size):
        while some := list(islice(lines, max(1, _BLOCK_NUMBERS // size))):
            heads, values = zip(*some, strict=True)
            write_lines(out, heads, np.stack(values))
            count += len(some)
    return count


def _parameters(
    config: ModelConfig, names: Sequence[str], params: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the beginning of a line and its numbers, float32 (M,).

    There is one for every parameter of every relation.
    """
    families = Families(config, len(names))
    columns = _columns(config, params, sorted(set(families.first.tolist())))
    _check([name for name, family in zip(names, families.first.tolist(), strict=True) if columns[family]])
    for name, family, row in zip(names, families.first.tolist(), families.row.tolist(), strict=True):
        for tail, values in columns[family]:
            yield name + tail, values[row]


def _columns(
    config: ModelConfig, params: Mapping[str, np.ndarray], families: Sequence[int]
) -> dict[int, list[tuple[str, np.ndarray]]]:
    """Return the columns after a relation's name, by family.

    For each parameter they are a text, and numbers, float32 (relations, M).
    """
    of_operator = defaultdict(list)
    for path in parameter_order(params, list(config.entities)):
        operator, _, parameter = path.rpartition("/")
        of_operator[f"{operator}/"].append((parameter, params[path]))
    columns: dict[int, list[tuple[str, np.ndarray]]] = {family: [] for family in families}
    for family, side in product(families, SIDES):
        relation = config.relations[family]
        for parameter, stored in of_operator[operator_path(family, side, "")]:
            values = stored if config.has_two_operators(relation) else stored[np.newaxis]
            tail = f"\t{side}\t{relation.operator}\t{parameter}\t{'x'.join(map(str, values.shape[1:]))}"
            columns[family].append((tail, values.reshape(len(values), -1)))
    return columns


def global_embedding(config: ModelConfig, params: Mapping[str, np.ndarray], entity: str) -> np.ndarray | None:
    """Return the vector that is added to every embedding of a type.

    None is returned when the model has none.
    """
    return params[global_path(entity)] if config.global_emb else None


def _check(names: Sequence[str]) -> None:
    """Refuse names that cannot be written.

    A check of all names together is nearly always enough.
    """
    together = "".join(names)
    if together.isascii() and not any(character in together for character in _UNSAFE):
        return
    for name in names:
        if any(character in name for character in _UNSAFE):
            raise FormatError(
                f"name {name!r:.60} holds a tab or a line break, which this text format cannot hold; "
                "export another format"
            )
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise FormatError(
                f"name {name!r:.60} holds half a character (a lone surrogate), which no text file can hold"
            )
