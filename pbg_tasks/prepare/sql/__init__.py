"""Definition of preparation, as SQL text that engines share.

The modules beside this one have the text: ``ids``, ``edges``, ``split``, ``delta`` and ``difference``. What engines
spell differently they take from a ``Dialect``. An engine makes tables and views of the texts, under the names that
other texts read. Nothing depends on the order in which an engine has its rows, so the same snapshot gives the same
files.

The functions below serve queries that only DuckDB runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare.sql.dialect import DUCKDB, Dialect, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["DUCKDB", "Dialect", "one_file", "parquet_rows", "quoted", "table"]


def one_file(path: object) -> str:
    """Return a path as DuckDB's text for this file only.

    Wildcards in its name are escaped.
    """
    return quoted(re.sub(r"([*?\[])", r"[\1]", str(path)))


def parquet_rows(files: Iterable[str], more: str = "") -> str:
    """Return DuckDB's text for the rows of Parquet files.

    A folder named ``rel=likes`` is no column. DuckDB would put it in the place of the files' own column, if all files
    are in such folders.

    Args:
        files: DuckDB's texts of their paths.
        more: further options.
    """
    return f"read_parquet([{', '.join(files)}], hive_partitioning=false{more})"


def table(path: Path) -> str:
    """Return DuckDB's text for a table of this package.

    Args:
        path: of its file; beside it are those of a table of several files.
    """
    names = present_files(path.name, (each.name for each in path.parent.glob("*.parquet"))) or [path.name]
    return parquet_rows(one_file(path.with_name(name)) for name in names)
