"""Words that engines spell differently.

Numbers of 64 bits have no sign in the definition. An engine without such a type has the same bits with a sign, and
compares, divides and shifts them in the way of its dialect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def quoted(text: str) -> str:
    """Return ``text`` as a string of standard SQL."""
    return "'" + text.replace("'", "''") + "'"


class Dialect(ABC):
    """Spelling of the definition for one engine.

    Arguments and results of type ``str`` are SQL expressions, unless a docstring has another meaning.

    Attributes:
        number: type of 64 bits.
        anti_join: join that keeps the left-hand rows without a partner.
        offset: column of offsets, whose name is a word of SQL.
    """

    number: str
    anti_join: str
    offset: str

    @abstractmethod
    def text(self, value: str) -> str:
        """Return a text as a literal."""

    @abstractmethod
    def md5_head(self, text: str) -> str:
        """Return the first 8 bytes of a text's MD5, little-endian."""

    @abstractmethod
    def md5_tail(self, text: str) -> str:
        """Return the last 8 bytes of a text's MD5, little-endian."""

    @abstractmethod
    def modulo(self, number: str, divisor: int) -> str:
        """Return the remainder of 64 bits, an INTEGER."""

    @abstractmethod
    def below(self, number: str, limit: int) -> str:
        """Return whether 64 bits are below a limit of at most 2**64."""

    @abstractmethod
    def xor(self, one: str, other: str) -> str:
        """Return the bits in which two numbers differ."""

    @abstractmethod
    def shifted(self, number: str, bits: int) -> str:
        """Return 64 bits moved to the right, with zeros on the left."""

    @abstractmethod
    def ordered(self, number: str) -> str:
        """Return a number that sorts as the 64 bits do."""

    @abstractmethod
    def digits(self, number: str) -> str:
        """Return 64 bits as a decimal text."""

    @abstractmethod
    def packed(self, *fields: tuple[str, int]) -> str:
        """Return one number of fields, each moved left by some bits."""

    @abstractmethod
    def item(self, numbers: Sequence[int], index: str) -> str:
        """Return that of some numbers which has an index, from 0 on."""

    @abstractmethod
    def once(self, value: str, use: Callable[[str], str]) -> str:
        """Return an expression that uses a costly value, computed once."""

    @abstractmethod
    def repeated(self, rows: str, keys: Sequence[str], order: str) -> str:
        """Return rows with ``again``: whether one before has the same keys.

        Args:
            rows: query.
            keys: columns without nulls.
            order: column by which rows of the same keys follow each other.
        """

    @abstractmethod
    def features(self, cell: str, separator: str) -> str:
        """Return the list of a cell's distinct features.

        Empty text between two separators is no feature.
        """


class _DuckDb(Dialect):
    """DuckDB, which has numbers without a sign, and computes equal expressions once."""

    number = "UBIGINT"
    anti_join = "ANTI JOIN"
    offset = '"offset"'

    def text(self, value: str) -> str:
        return quoted(value)

    # DuckDB's own macros `md5_number_upper` and `md5_number_lower` go through a text of bits, five times slower.
    def md5_head(self, text: str) -> str:
        return f"(md5_number({text}) & {2**64 - 1})::UBIGINT"

    def md5_tail(self, text: str) -> str:
        return f"(md5_number({text}) >> 64)::UBIGINT"

    def modulo(self, number: str, divisor: int) -> str:
        return f"({number} % {divisor})::INTEGER"

    def below(self, number: str, limit: int) -> str:
        return f"({number} < {limit})"

    def xor(self, one: str, other: str) -> str:
        return f"xor({one}, {other})"

    def shifted(self, number: str, bits: int) -> str:
        return f"({number} >> {bits})"

    def ordered(self, number: str) -> str:
        return number

    def digits(self, number: str) -> str:
        return f"({number})::VARCHAR"

    def packed(self, *fields: tuple[str, int]) -> str:
        return "(" + " | ".join(f"(({field})::UBIGINT << {bits})" for field, bits in fields) + ")"

    def item(self, numbers: Sequence[int], index: str) -> str:
        return f"[{', '.join(map(str, numbers))}][{index} + 1]"

    def once(self, value: str, use: Callable[[str], str]) -> str:
        return use(value)

    # An empty window keeps the order of its rows, and is a stream.
    def repeated(self, rows: str, keys: Sequence[str], order: str) -> str:
        same = " AND ".join(f"lag({key}) OVER () = {key}" for key in keys)
        in_order = f"SELECT * FROM ({rows}) ORDER BY {', '.join(keys)}, {order}"
        return f"SELECT *, coalesce({same}, false) AS again FROM ({in_order})"

    def features(self, cell: str, separator: str) -> str:
        return f"list_filter(list_distinct(string_split({cell}, {quoted(separator)})), lambda feature: feature <> '')"


DUCKDB: Dialect = _DuckDb()
