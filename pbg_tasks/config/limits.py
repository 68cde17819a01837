"""Limits of figures, of which a mild one warns and a hard one blocks, and what they say of a figure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from pydantic import model_validator

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.schema import NonNegativeFloat


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: whether it held, the figure and its limit, and a sentence for people.

    ``warned``: it held, but came nearer to its limit than it should.
    """

    name: str
    passed: bool
    value: float | None
    limit: float | None
    sentence: str
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks; what they judge passes when every one does."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing blocks."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}


def only_warning(check: Check, reason: str) -> Check:
    """Return a check that blocks as one that warns, and says why; any other as it is.

    Args:
        check: of a figure that is not what the limit was meant for.
        reason: what makes it so.
    """
    if check.passed:
        return check
    return replace(check, passed=True, warned=True, sentence=f"{check.sentence}; this only warns, {reason}")


class _Limit(Frozen):
    """A figure beyond ``warn`` is said aloud, beyond ``block`` it ends the night; null: neither."""

    warn: NonNegativeFloat | None = None
    block: NonNegativeFloat | None = None

    upper: ClassVar[bool]
    words: ClassVar[str]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.warn is not None and self.block is not None and self._beyond(self.warn, self.block):
            raise ValueError(f"warn {self.warn:g} could never be said: block, {self.block:g}, comes before it")
        return self

    def _beyond(self, value: float, limit: float) -> bool:
        return value > limit if self.upper else value < limit

    @property
    def asked(self) -> bool:
        """Whether there is any limit."""
        return self.warn is not None or self.block is not None

    def judge(self, name: str, value: float, measured: str, form: str = "{:g}") -> Check:
        """Judge a figure; one that is not a number fulfils no limit.

        Args:
            name: of the check.
            value: the figure.
            measured: the figure in words.
            form: how its limit is written.
        """
        blocked, warned = (
            limit is not None and (math.isnan(value) or self._beyond(value, limit)) for limit in (self.block, self.warn)
        )
        limit = self.warn if self.block is None or (warned and not blocked) else self.block
        sentence = measured if limit is None else f"{measured}, {self.words.format(form.format(limit))}"
        rounded = round(value, 6) if math.isfinite(value) else None  # JSON has no word for NaN
        return Check(name, not blocked, rounded, limit, sentence, warned=warned and not blocked)


class AtMost(_Limit):
    """An upper limit: a figure above ``warn`` is said aloud, above ``block`` it ends the night; null: neither."""

    upper = True
    words = "at most {} allowed"


class AtLeast(_Limit):
    """A lower limit: a figure below ``warn`` is said aloud, below ``block`` it ends the night; null: neither."""

    upper = False
    words = "at least {} asked"
