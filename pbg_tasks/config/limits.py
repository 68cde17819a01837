"""Limits of figures, and checks of figures against them.

A mild limit warns, a hard one blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from pbg_tasks.config.results import CheckDocument

import math
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from pydantic import model_validator

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.schema import NonNegativeFloat

_NAMED = 3
"""Number of checks beyond the first that a refusal names."""
_SMALL = 0.01
"""Share below which one decimal of a percentage is no longer exact enough."""


def percent(share: float) -> str:
    """Return a share in percent, a small one with two digits."""
    if not math.isfinite(share) or share == 0 or abs(share) >= _SMALL:
        return f"{share:.1%}"
    places = -math.floor(math.log10(abs(share))) - 1  # of the second digit, in percent
    return f"{100 * share:.{places}f}".rstrip("0").rstrip(".") + "%"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one rule.

    Attributes:
        name: of the rule.
        passed: whether it held.
        value: the figure; None where it is no finite number.
        limit: of the figure; None where it has none.
        sentence: the result in words.
        warned: whether it held, but the figure is beyond the limit for a warning.
    """

    name: str
    passed: bool
    value: float | None
    limit: float | None
    sentence: str
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of a gate; it passes when every check does."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check blocks."""
        return all(check.passed for check in self.checks)

    @property
    def refusal(self) -> str | None:
        """One sentence for what blocks; None where nothing does."""
        return refusal_by(self.checks)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the verdict as plain JSON values."""
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}


def refusal_by(checks: Sequence[Check | CheckDocument]) -> str | None:
    """Return one sentence for the checks that block; None where none does.

    It has the first one's own sentence, and the names of others.
    """
    blocking = [check for check in checks if not check.passed]
    if not blocking:
        return None
    named = [check.name for check in blocking[1 : 1 + _NAMED]]
    if len(blocking) > 1 + _NAMED:
        named.append(f"{len(blocking) - 1 - _NAMED} more")
    return f"{blocking[0].sentence}; it also failed {', '.join(named)}" if named else blocking[0].sentence


def only_warning(check: Check, reason: str) -> Check:
    """Return a blocking check as one that only warns, with the reason.

    Any other check is returned as it is.

    Args:
        check: of a figure for which the limit was not meant.
        reason: why the limit does not apply.
    """
    if check.passed:
        return check
    return replace(check, passed=True, warned=True, sentence=f"{check.sentence}; this only warns, {reason}")


class _Limit(Frozen):
    """Limit of a figure: beyond ``warn`` it warns, beyond ``block`` it blocks.

    Attributes:
        warn: from here on a check warns; null: never.
        block: from here on it refuses; null: never.
    """

    warn: NonNegativeFloat | None = None
    block: NonNegativeFloat | None = None

    upper: ClassVar[bool]
    words: ClassVar[str]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.warn is not None and self.block is not None and self._beyond(self.warn, self.block):
            raise ValueError(f"warn {self.warn:g} would never warn: block, {self.block:g}, comes before it")
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
            form: format of its limit, which may name it as ``{share}``, in percent.
        """
        blocked, warned = (
            limit is not None and (math.isnan(value) or self._beyond(value, limit)) for limit in (self.block, self.warn)
        )
        limit = self.warn if self.block is None or (warned and not blocked) else self.block
        sentence = measured if limit is None else f"{measured}, {self._in_words(limit, form)}"
        rounded = round(value, 6) if math.isfinite(value) else None  # JSON cannot represent NaN
        return Check(name, not blocked, rounded, limit, sentence, warned=warned and not blocked)

    def _in_words(self, limit: float, form: str) -> str:
        return self.words.format(form.format(limit, share=percent(limit)))


class AtMost(_Limit):
    """Upper limit: a figure above ``warn`` warns, above ``block`` blocks."""

    upper = True
    words = "at most {} allowed"


class AtLeast(_Limit):
    """Lower limit: a figure below ``warn`` warns, below ``block`` blocks."""

    upper = False
    words = "at least {} asked"
