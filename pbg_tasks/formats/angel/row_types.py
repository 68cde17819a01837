"""Types of rows in Angel's servers, by their number in metadata."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from pbg_tasks.errors import FormatError

_VALUE_TYPES = (np.float64, np.float32, np.int64, np.int32)
_KINDS = 7  # dense, sparse and their variants, for each type of value


class RowType(IntEnum):
    """Type of a row: values, keys, and whether it stores every column."""

    T_DOUBLE_DENSE = 0
    T_DOUBLE_DENSE_COMPONENT = 1
    T_DOUBLE_DENSE_LONGKEY_COMPONENT = 2
    T_DOUBLE_SPARSE = 3
    T_DOUBLE_SPARSE_COMPONENT = 4
    T_DOUBLE_SPARSE_LONGKEY = 5
    T_DOUBLE_SPARSE_LONGKEY_COMPONENT = 6
    T_FLOAT_DENSE = 7
    T_FLOAT_DENSE_COMPONENT = 8
    T_FLOAT_DENSE_LONGKEY_COMPONENT = 9
    T_FLOAT_SPARSE = 10
    T_FLOAT_SPARSE_COMPONENT = 11
    T_FLOAT_SPARSE_LONGKEY = 12
    T_FLOAT_SPARSE_LONGKEY_COMPONENT = 13
    T_LONG_DENSE = 14
    T_LONG_DENSE_COMPONENT = 15
    T_LONG_DENSE_LONGKEY_COMPONENT = 16
    T_LONG_SPARSE = 17
    T_LONG_SPARSE_COMPONENT = 18
    T_LONG_SPARSE_LONGKEY = 19
    T_LONG_SPARSE_LONGKEY_COMPONENT = 20
    T_INT_DENSE = 21
    T_INT_DENSE_COMPONENT = 22
    T_INT_DENSE_LONGKEY_COMPONENT = 23
    T_INT_SPARSE = 24
    T_INT_SPARSE_COMPONENT = 25
    T_INT_SPARSE_LONGKEY = 26
    T_INT_SPARSE_LONGKEY_COMPONENT = 27
    T_ANY_INTKEY_DENSE = 28
    T_ANY_INTKEY_SPARSE = 29
    T_ANY_LONGKEY_SPARSE = 30
    T_ANY_STRINGKEY_SPARSE = 31
    T_ANY_ANYKEY_SPARSE = 32

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers.

        Other values are objects of a program, in a format of its own.
        """
        return self < _KINDS * len(_VALUE_TYPES)

    @property
    def storable(self) -> bool:
        """Whether a server can hold such rows.

        Component types are parts of a worker's vectors, which no server holds.
        """
        return not self.name.endswith("_COMPONENT")

    @property
    def dense(self) -> bool:
        """Whether a row stores every column, also those that are zero."""
        return "_DENSE" in self.name

    @property
    def key_type(self) -> np.dtype[np.signedinteger]:
        """Type of a column's number: int32 or int64."""
        return np.dtype(np.int64 if "LONGKEY" in self.name else np.int32)

    @property
    def value_type(self) -> np.dtype[np.generic]:
        """Type of a value, for numeric rows."""
        return np.dtype(_VALUE_TYPES[self // _KINDS])


def row_type(number: int, where: str) -> RowType:
    """Return the row type of a number.

    Raises:
        FormatError: there is none, or no server can hold it.
    """
    try:
        found = RowType(number)
    except ValueError:
        raise FormatError(f"{where}: rowType is {number}, which no version of Angel knows (0 to 32)") from None
    if not found.storable:
        raise FormatError(
            f"{where}: rowType is {number} ({found.name}), which no server can hold; it was not saved by one"
        )
    return found
