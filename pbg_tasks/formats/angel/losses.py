"""What Angel loses while it saves, as far as its files show it: said before anything is taken for the truth."""

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
"""Values of which Angel kept the low byte of Java's character: an infinity sign, or the replacement character."""

_ROUNDED = re.compile(r"-?[0-9]+(\.[0-9]{0,5}[1-9])?", re.ASCII)  # what six decimals can look like


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that was in the matrix and is not in its files.

    Attributes:
        kind: stable word for it.
        certain: it happened; else the files only look like it.
        message: what is lost.
    """

    kind: str
    certain: bool
    message: str


class AngelLossWarning(UserWarning):
    """A matrix that may have lost something while Angel saved it."""


def refuse(loss: Loss) -> None:
    """Take no loss that is certain, and warn of the others.

    Raises:
        FormatError: it is certain.
    """
    if loss.certain:
        raise FormatError(f"{loss.message}; to read what is left all the same, accept losses")
    warnings.warn(loss.message, AngelLossWarning, stacklevel=3)


def once(on_loss: OnLoss) -> OnLoss:
    """Return what passes the first loss of a kind on, and the first certain one: every partition may show it again."""
    told: dict[str, bool] = {}

    def tell(loss: Loss) -> None:
        if loss.kind not in told or loss.certain > told[loss.kind]:
            told[loss.kind] = loss.certain
            on_loss(loss)

    return tell


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
    """Whether a sparse row's columns are unknown without their numbers: it holds some, and not every one there is."""
    return any(row.element_num not in {0, part.end_col - part.start_col} for row in part.row_metas.values())


def rounded_loss(sample: str, separator: str, where: str) -> Loss | None:
    """Return the loss of doubles that were written with six decimals, judged by whole lines of a partition.

    It is certain if one is not as Java writes a double: whole without a point, plain where that has an exponent, or one
    byte.
    """
    # Neither `splitlines` nor a bare `strip`: to both, the byte of an infinity is white space.
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
    """Return the loss of columns that a partition's first row did not have, judged by the zeros of another row."""
    return Loss(
        "ragged-columns",
        certain=False,
        message=f"{where}: row {row} had {elements} elements and only {nonzero} of the saved columns hold one: "
        "perhaps Angel dropped columns that the first row did not have",
    )
