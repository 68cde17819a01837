"""Adagrad of ``engine.fixed_shapes`` as CUDA kernels, in Triton.

Each gradient is read once, and each row read and written once. After sorting, equal rows are a run. A program sums a
run's gradients and steps its row; runs that reach over blocks of ``_BLOCK`` positions are first summed block by block,
so that a row with many gradients does not keep one program busy while all others have ended. The order of every sum
follows from the positions alone, so the result is the same every time.

Arguments of kernels have no types: Triton compiles them for those that come.
"""

# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from pbg_tasks.training.engine.optimizers import EPSILON

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.training.data.tables import Table

_BLOCK = 64  # sorted positions whose gradients one program sums at most
_SPAN = 8  # positions one program looks at for rows to step
_TILE = 4  # gradients read at a time
_WIDEST = 1024  # numbers of a row that one program steps; a wider parameter's are stepped by several


def compile_driver() -> None:
    """Compile and load the library that starts kernels.

    The first kernel would do so otherwise.

    Raises:
        OSError, SubprocessError: the compiler of ``CC`` is none, or fails, as without Python.h; or the cache cannot be
            written.
        RuntimeError: there is no compiler.
        AssertionError, ImportError: the driver of the GPU is not found, or the library cannot be loaded.
    """
    _ = triton.runtime.driver.active.utils


def row_adagrad(table: Table, rows_M: Tensor, grads_MD: Tensor, lr: Tensor) -> None:
    """Step rows of a table in place.

    G += mean(g^2), x -= lr g / (sqrt(G) + 1e-10).

    Args:
        table: on a CUDA device.
        rows_M: int64, row numbers, which may repeat.
        grads_MD: their gradients, contiguous; overwritten.
        lr: learning rate, a float64 scalar.
    """
    width = triton.next_power_of_2(grads_MD.shape[1])
    _step(table.embeddings, table.row_sums, rows_M, grads_MD, lr, width=width, by_row=True)


def adagrad_rows(param: Tensor, sums: Tensor, rows_M: Tensor, grads: Tensor, lr: Tensor) -> None:
    """Step rows of a stacked parameter in place, element by element.

    G += g^2, x -= lr g / (sqrt(G) + 1e-10).

    Args:
        param: (R, ...), contiguous.
        sums: (R, ...), contiguous.
        rows_M: int64, rows of ``param``, which may repeat.
        grads: (M, ...); overwritten.
        lr: learning rate, a float64 scalar.
    """
    grads_MP = grads.reshape(len(grads), -1).contiguous()
    width = min(_WIDEST, triton.next_power_of_2(grads_MP.shape[1]))
    _step(param, sums, rows_M, grads_MP, lr, width=width, by_row=False)


def _step(
    values: Tensor, sums: Tensor, rows_M: Tensor, grads_MD: Tensor, lr: Tensor, *, width: int, by_row: bool
) -> None:
    count, dimension = grads_MD.shape
    if not count:
        return
    narrow_M = rows_M.int() if len(values) < 2**31 else rows_M  # half the digits to sort by
    ordered_M, order_M = torch.sort(narrow_M, stable=True)
    columns = triton.cdiv(dimension, width)
    shape = {"BLOCK": _BLOCK, "TILE": _TILE, "WIDTH": width, "num_warps": max(1, min(8, _TILE * width // 1024))}
    _sum_blocks[triton.cdiv(count, _BLOCK), columns, 2](ordered_M, order_M, grads_MD, count, dimension, **shape)
    _step_rows[triton.cdiv(count, _SPAN), columns](
        values,
        sums,
        ordered_M,
        order_M,
        grads_MD,
        lr,
        count,
        dimension,
        BY_ROW=by_row,
        EPS=EPSILON,
        SPAN=_SPAN,
        **shape,
    )


@triton.jit
def _sum_run(
    row, start, limit, first, stride, ordered, order, grads, dimension, TILE: tl.constexpr, WIDTH: tl.constexpr
):
    """Sum the gradients of a run.

    They are at ``start``, ``first``, ``first + stride`` and so on, below ``limit`` and while the row is the same.
    """
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    within = columns < dimension
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    number, more = 0, True
    while more:
        steps = number + tl.arange(0, TILE)
        places = tl.where(steps == 0, start, first + (steps - 1) * stride)
        inside = places < limit
        same = inside & (tl.load(ordered + places, mask=inside, other=-1) == row)
        sources = tl.load(order + places, mask=same, other=0)
        tile = tl.load(
            grads + sources[:, None] * dimension + columns[None, :], mask=same[:, None] & within[None, :], other=0.0
        )
        total += tl.sum(tile, axis=0)
        number += TILE
        more = tl.sum(same.to(tl.int32)) == TILE
    return total


@triton.jit
def _sum_blocks(ordered, order, grads, count, dimension, BLOCK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Sum the parts of runs in one block.

    The runs reach over the block's begin or end. The sum of a part takes the place of its first gradient.
    """
    begin = tl.program_id(0) * BLOCK
    limit = tl.minimum(begin + BLOCK, count)
    first, last = tl.load(ordered + begin), tl.load(ordered + limit - 1)
    before = tl.load(ordered + begin - 1, mask=begin > 0, other=-1) == first
    if tl.program_id(2) == 0:
        place, row = begin, first
        wanted = before
    else:
        places = begin + tl.arange(0, BLOCK)
        within_block = places < limit
        rows = tl.load(ordered + places, mask=within_block, other=0)
        place, row = begin + tl.sum((within_block & (rows < last)).to(tl.int32)), last
        after = tl.load(ordered + limit, mask=limit < count, other=-1) == last
        wanted = after & ((place > begin) | (before == 0))
    if wanted:
        total = _sum_run(row, place, limit, place + 1, 1, ordered, order, grads, dimension, TILE, WIDTH)
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        source = tl.load(order + place)
        tl.store(grads + source * dimension + columns, total, mask=columns < dimension)


@triton.jit
def _step_rows(
    values,
    sums,
    ordered,
    order,
    grads,
    rate,
    count,
    dimension,
    BY_ROW: tl.constexpr,
    EPS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Step the rows whose runs begin in a span."""
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    within = columns < dimension
    lr = tl.load(rate).to(tl.float32)
    begin = tl.program_id(0) * SPAN
    for place in range(begin, tl.minimum(begin + SPAN, count)):
        row = tl.load(ordered + place)
        if tl.load(ordered + place - 1, mask=place > 0, other=-1) != row:
            limit = tl.minimum((place // BLOCK + 1) * BLOCK, count)
            over = tl.load(ordered + limit, mask=limit < count, other=-1) == row
            # of a run over blocks, the sums of its parts; else its gradients
            first = tl.where(over, limit, place + 1)
            stride = tl.where(over, BLOCK, 1)
            end = tl.where(over, count, limit)
            total = _sum_run(row, place, end, first, stride, ordered, order, grads, dimension, TILE, WIDTH)
            numbers = values + row.to(tl.int64) * dimension + columns
            if BY_ROW:
                grown = tl.load(sums + row) + tl.sum(total * total) / dimension
                tl.store(sums + row, grown)
                moved = total * (lr / (tl.sqrt(grown) + EPS))
            else:
                places = sums + row.to(tl.int64) * dimension + columns
                grown = tl.load(places, mask=within, other=0.0) + total * total
                tl.store(places, grown, mask=within)
                moved = total * lr / (tl.sqrt(grown) + EPS)
            tl.store(numbers, tl.load(numbers, mask=within, other=0.0) - moved, mask=within)
