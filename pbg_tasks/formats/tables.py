"""Names of the files of a table.

A table of more than ``ROWS_OF_A_FILE`` rows is several files, ``1-of-3.{name}`` and so on. It has no file ``{name}``,
which an earlier version of this package would take for all of it. As each name has the number of files, one of them
shows which others there must be. No other file begins with a digit, whatever an entity type is named.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS_OF_A_FILE = 1 << 26
"""No task sorts more of a table at once; so many hashes of edges are 0.4 GB."""


def file_names(table: str, files: int) -> list[str]:
    """Return the names of a table's files, by their numbers."""
    return [table] if files == 1 else [f"{number}-of-{files}.{table}" for number in range(1, files + 1)]


def present_files(table: str, names: Iterable[str]) -> list[str]:
    """Return the names of all files of a table.

    They are empty where no file of it is among ``names``; else missing ones are returned, too.
    """
    numbered = re.compile(rf"[0-9]{{1,6}}-of-([0-9]{{1,6}})\.{re.escape(table)}")
    for name in names:
        if name == table:
            return [table]
        if found := numbered.fullmatch(name):
            return file_names(table, int(found[1]))
    return []


def files_in_order(rows: int) -> int:
    """Return the number of files that rows fill one by one."""
    return max(1, -(-rows // ROWS_OF_A_FILE))


def bits_of_files(rows: int) -> int:
    """Return how many first bits of a hash are a file's number.

    Hashes are uniform, so each file has about as many rows.
    """
    return ((max(rows, 1) - 1) // ROWS_OF_A_FILE).bit_length()
