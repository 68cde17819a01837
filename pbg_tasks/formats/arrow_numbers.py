"""Numbers of Arrow arrays as NumPy arrays.

Arrow's own ``to_numpy`` imports pandas where that is installed, for half a second to a second of a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
