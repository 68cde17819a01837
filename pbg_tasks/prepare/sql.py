"""Expressions that queries of this room share."""

from __future__ import annotations


def quoted(text: str) -> str:
    """Return ``text`` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def md5_tail(text: str) -> str:
    """Return the SQL for the last 8 bytes of a text's MD5 as a little-endian number, DuckDB's ``md5_number_lower``.

    Args:
        text: SQL expression. DuckDB's own macro goes through a text of bits, five times slower than this.
    """
    return f"(md5_number({text}) >> 64)::UBIGINT"


def md5_head(text: str) -> str:
    """Return the SQL for the first 8 bytes of a text's MD5 as a little-endian number, ``md5_number_upper``."""
    return f"(md5_number({text}) & {2**64 - 1})::UBIGINT"
