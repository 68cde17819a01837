"""Dialect of Spark.

Its 64 bits have a sign. A session must have ``SETTINGS``: without them it would turn what cannot be cast into nulls, or
change texts: their variables and escapes. A table is never sent to every task of a join by Spark's guess of its size:
that of edges which Python reads follows from the list of files, so the driver would collect them all. Plans are not
adapted while they run: after every stage the driver would write the text of the plan, which has those of all kept
tables below, each twice, as it was and as it is. Eight tables one above another made that minutes for 300 edges. That
text is cut, too: with 1 M edges it was nine tenths of 350 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.prepare.sql.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.maxPlanStringLength": "10000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",
}
PARSER = {"spark.sql.parser.escapedStringLiterals": "false"}
"""Given to a session only where it has another value: Spark 4 warns of this setting at each query where it is set."""
_SIGN = "(-9223372036854775807L - 1L)"


class _Spark(Dialect):
    number = "BIGINT"
    anti_join = "LEFT ANTI JOIN"
    offset = "`offset`"

    def text(self, value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def md5_head(self, text: str) -> str:
        return self._eight_bytes(text, 1)

    def md5_tail(self, text: str) -> str:
        return self._eight_bytes(text, 17)

    def modulo(self, number: str, divisor: int) -> str:
        # By two halves of 32 bits, each of which is a number without a sign here, too.
        upper = f"pmod(shiftrightunsigned({number}, 32), {divisor}) * {2**32 % divisor}"
        return f"CAST(pmod({upper} + pmod(({number}) & 4294967295L, {divisor}), {divisor}) AS INT)"

    def below(self, number: str, limit: int) -> str:
        if limit in {0, 2**64}:
            return "true" if limit else "false"
        return f"({self.ordered(number)} < {limit - 2**63}L)"

    def xor(self, one: str, other: str) -> str:
        return f"(({one}) ^ ({other}))"

    def shifted(self, number: str, bits: int) -> str:
        return f"shiftrightunsigned({number}, {bits})"

    def ordered(self, number: str) -> str:
        return f"(({number}) ^ {_SIGN})"

    def digits(self, number: str) -> str:
        return f"CAST(CAST({number} AS DECIMAL(20, 0)) + if({number} < 0, {2**64}, 0) AS STRING)"

    def packed(self, *fields: tuple[str, int]) -> str:
        return "(" + " | ".join(f"shiftleft(CAST({field} AS BIGINT), {bits})" for field, bits in fields) + ")"

    def item(self, numbers: Sequence[int], index: str) -> str:
        # Sail takes a column's name in brackets for that of a field.
        return f"element_at(array({', '.join(f'{number}L' for number in numbers)}), {index} + 1)"

    def once(self, value: str, use: Callable[[str], str]) -> str:
        return f"element_at(transform(array({value}), once -> {use('once')}), 1)"

    def repeated(self, rows: str, keys: Sequence[str], order: str) -> str:
        window = f"PARTITION BY {', '.join(keys)} ORDER BY {order}"
        return f"SELECT *, row_number() OVER ({window}) > 1 AS again FROM ({rows})"

    def features(self, cell: str, separator: str) -> str:
        raise NotImplementedError("featurized types are refused before any text is made: a bug")

    def _eight_bytes(self, text: str, first: int) -> str:
        # md5() is a text of hex digits. conv() reads those of 4 bytes, last byte first.
        def four(digest: str, begin: int) -> str:
            digits = ", ".join(f"substr({digest}, {begin + 6 - 2 * byte}, 2)" for byte in range(4))
            return f"CAST(conv(concat({digits}), 16, 10) AS BIGINT)"

        return self.once(
            f"md5({text})", lambda digest: f"shiftleft({four(digest, first + 8)}, 32) | {four(digest, first)}"
        )


SPARK: Dialect = _Spark()
