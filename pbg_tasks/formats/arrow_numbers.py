"""Columns of Arrow as NumPy arrays, and the way back.

Arrow's own ``to_numpy`` and ``array`` import pandas where that is installed, for half a second to a second of a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import DTypeLike


def numbers(column: pa.Array, dtype: DTypeLike) -> np.ndarray:
    """Return the numbers of an Arrow array, read-only and without a copy.

    Args:
        column: of N numbers.
        dtype: NumPy's name of their type.

    Returns:
        ``dtype`` (N,).

    Raises:
        ValueError: some are null, or the type has another width.
    """
    kind = np.dtype(dtype)
    if column.null_count or column.type.bit_width != 8 * kind.itemsize:
        raise ValueError(f"expected {kind} without null, found {column.type} with {column.null_count} null")
    _, data = column.buffers()
    return np.frombuffer(data or b"", kind, len(column), column.offset * kind.itemsize)


def column(values: np.ndarray) -> pa.Array:
    """Return numbers as an Arrow array; contiguous ones are not copied.

    Args:
        values: (N,), of a type of numbers that Arrow has.
    """
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def text_column(values: Iterable[str]) -> pa.Array:
    """Return texts as an Arrow array."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])
