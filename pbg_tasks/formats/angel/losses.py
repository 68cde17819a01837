"""Losses of Angel's own saving, as far as its files show them.

They are reported before a reader relies on the data.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.angel.java_digits import java_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pbg_tasks.formats.angel.meta import MatrixFilesMeta, MatrixPartitionMeta
    from pbg_tasks.formats.angel.records import Format
    from pbg_tasks.formats.angel.row_types import RowType

    OnLoss = Callable[["Loss"], None]

ONE_BYTE_VALUES = {"\x1e": math.inf, "-\x1e": -math.inf, "\xfd": math.nan}
"""Values that Angel wrote as the low byte of Java's character for them: an infinity sign, or the replacement character.
"""

_ROUNDED = re.compile(r"-?[0-9]+(\.[0-9]{0,5}[1-9])?", re.ASCII)  # texts that six decimals can have


@dataclass(frozen=True, slots=True)
class Loss:
    """Data that was in the matrix and is missing in its files.

    Attributes:
        kind: stable word for the kind of loss.
        certain: whether it has happened; else the files only look like it.
        message: description of the lost data.
    """

    kind: str
    certain: bool
    message: str


class AngelLossWarning(UserWarning):
    """Warning that a matrix may have lost data while Angel saved it."""


def refuse(loss: Loss) -> None:
    """Raise an error for a certain loss, and a warning for another.

    Raises:
        FormatError: the loss is certain.
    """
    if loss.certain:
        raise FormatError(f"{loss.message}; to read what is left all the same, accept losses")
    warnings.warn(loss.message, AngelLossWarning, stacklevel=3)


def once(on_loss: OnLoss) -> OnLoss:
    """Return a function that passes on the first loss of each kind.

    It also passes on the first certain one. Every partition may show the same loss again.
    """
    seen: dict[str, bool] = {}

    def pass_on(loss: Loss) -> None:
        if loss.kind not in seen or loss.certain > seen[loss.kind]:
            seen[loss.kind] = loss.certain
            on_loss(loss)

    return pass_on


def losses(meta: MatrixFilesMeta, form: Format, row_type: RowType, where: str) -> Iterator[Loss]:
    """Yield the losses that metadata shows."""
    parts = [part for part in meta.part_metas.values() if part.nnz or part.length]
    if not form.has_columns and not row_type.dense and any(map(_lacks_keys, parts)):
        yield Loss(
            "dropped-keys",
            certain=True,
            message=f"{where}: Angel wrote sparse rows without their column numbers, which cannot be recovered",
        )
    if form.by_column and any(part.part_id and part.start_col == part.end_col for part in parts):
        yield Loss(
            "hashed-columns",
            certain=True,
            message=f"{where}: Angel shifts the column numbers of hashed partitions but the first in this format and "
            "writes zeros for their values",
        )
    if (
        form.by_column
        and not row_type.dense
        and any(row.element_num > part.save_col_num for part in parts for row in part.row_metas.values())
    ):
        yield Loss(
            "ragged-columns",
            certain=True,
            message=f"{where}: Angel saved the columns of each partition's first row only, and other rows had more",
        )


def _lacks_keys(part: MatrixPartitionMeta) -> bool:
    """Return whether a sparse row's columns are unknown without their numbers.

    That is so where the row holds some of the columns, but not all.
    """
    return any(row.element_num not in {0, part.end_col - part.start_col} for row in part.row_metas.values())


def rounded_loss(sample: str, separator: str, where: str) -> Loss | None:
    """Return the loss of doubles that were rounded to six decimals.

    It is judged by whole lines of a partition, and certain if a value is not as Java writes a double: a whole number
    without a point, one in plain notation where Java's has an exponent, or a single byte.
    """
    # Neither `splitlines` nor `strip` without an argument: both take the byte of an infinity for white space.
    lines = [line for line in re.split("\r\n|\r|\n", sample) if line]
    values = [line.rpartition(separator)[2].strip(" \t") for line in lines]
    written = [value for value in values if value not in ONE_BYTE_VALUES]
    if not values or not all(_ROUNDED.fullmatch(value) for value in written):
        return None
    certain = len(written) < len(values) or any(value != java_text(float(value), single=False) for value in written)
    return Loss(
        "six-decimals",
        certain=certain,
        message=f"{where}: {'' if certain else 'perhaps '}Angel rounded the doubles to six decimals, as since 2.3 in "
        "this format",
    )


def one_byte_loss(text: str, where: str) -> Loss:
    """Return the loss of a value that was written as one byte."""
    return Loss(
        "one-byte-values",
        certain=True,
        message=f"{where}: an infinite value or NaN, which Angel wrote so that no program can read it: {text!r}",
    )


def zeros_loss(row: int, elements: int, nonzero: int, where: str) -> Loss:
    """Return the loss of columns that are missing in a first row.

    It is the first row of a partition, and the loss is judged by the zeros of another row.
    """
    return Loss(
        "ragged-columns",
        certain=False,
        message=f"{where}: row {row} had {elements} elements and only {nonzero} of the saved columns hold one: "
        "perhaps Angel dropped columns that the first row did not have",
    )
