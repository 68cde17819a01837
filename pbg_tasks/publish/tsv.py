"""Embeddings and operators as text, as PBG's ``export_to_tsv`` writes them: a name and numbers, parted by tabs.

A name that holds a tab or a line break would be read as something else and is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.embeddings import iter_blocks
from pbg_tasks.formats.model import parameter_order
from pbg_tasks.model.families import Families
from pbg_tasks.model.parameters import SIDES, global_path, operator_path
from pbg_tasks.publish.decimals import format_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from pbg_tasks.config import ModelConfig

BLOCK_ROWS = 512
_UNSAFE = ("\t", "\n", "\r")


def write_embeddings_tsv(
    out: TextIO,
    path: Path,
    names: Sequence[str],
    *,
    dimension: int,
    added: np.ndarray | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> None:
    """Write a partition's embeddings, one line an entity.

    Args:
        out: where to.
        path: embeddings file.
        names: by offset.
        dimension: of the embeddings.
        added: float32 (D,), the type's global embedding: it is part of every embedding.
        on_rows: told how many rows were written since the last time.

    Raises:
        FormatError: the file is damaged or of another shape, or a name cannot be written.
    """
    for start, raw in iter_blocks(path, BLOCK_ROWS, count=len(names), dimension=dimension):
        block = raw if added is None else raw + added
        rows = zip(names[start : start + len(block)], format_rows(block), strict=True)
        out.writelines(f"{_safe(name)}\t{row}" for name, row in rows)
        if on_rows is not None:
            on_rows(len(block))


def write_relations_tsv(
    out: TextIO, config: ModelConfig, names: Sequence[str], params: Mapping[str, np.ndarray]
) -> int:
    """Write the parameters of every relation's operator: name, side, operator, parameter, shape, numbers.

    Args:
        out: where to.
        config: of the model.
        names: of the relations, by id.
        params: shared parameters by PBG's path below ``model/``.

    Returns:
        How many lines were written; an operator without parameters has none.
    """
    count = 0
    params = {path: params[path] for path in parameter_order(params, list(config.entities))}
    families = Families(config, len(names))
    for relation, name in enumerate(names):
        family = int(families.first[relation])
        for side, parameter, value in _parameters(config, params, family, int(families.row[relation])):
            shape = "x".join(map(str, value.shape))
            (numbers,) = format_rows(value.reshape(1, -1))
            out.write(f"{_safe(name)}\t{side}\t{config.relations[family].operator}\t{parameter}\t{shape}\t{numbers}")
            count += 1
    return count


def _parameters(
    config: ModelConfig, params: Mapping[str, np.ndarray], family: int, row: int
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (side, name, values) of one relation's parameters."""
    for side in SIDES:
        prefix = operator_path(family, side, "")
        for path, value in params.items():
            if path.startswith(prefix):
                yield side, path.removeprefix(prefix), value[row] if config.dynamic_relations else value


def global_embedding(config: ModelConfig, params: Mapping[str, np.ndarray], entity: str) -> np.ndarray | None:
    """Return what is added to every embedding of a type; None when the model has nothing of the kind."""
    return params[global_path(entity)] if config.global_emb else None


def _safe(name: str) -> str:
    if any(character in name for character in _UNSAFE):
        raise FormatError(
            f"name {name!r:.60} holds a tab or a line break, which this text format cannot hold; export another format"
        )
    if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
        raise FormatError(f"name {name!r:.60} holds half a character (a lone surrogate), which no text file can hold")
    return name
