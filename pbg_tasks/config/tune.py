"""Search of hyper-parameters: the section ``tune`` of a graph spec.

It is never part of a run, because it changes no night.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from pbg_tasks.config.base import Frozen, canonical_json
from pbg_tasks.config.schema import Float, NonNegativeInt, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    import random

_DIGITS = 6  # significant digits of a number drawn without steps, so that it can be read and copied
_ROUNDING = 1e-9  # what rounding may take from the last of equal steps


class Range(Frozen):
    """Numbers between two ends, both included.

    Attributes:
        low: the least.
        high: the greatest.
        log: whether its logarithm is drawn evenly.
        step: distance of the numbers that may be drawn, counted from ``low``; null: all numbers.
        int: whether they are whole.
    """

    low: Float
    high: Float
    log: bool = False
    step: PositiveFloat | None = None
    int: bool = False

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}; low must be the smaller one")
        if not math.isfinite((self.high - self.low) / (self.step or 1)):
            raise ValueError(f"{self.low:g} to {self.high:g} has more numbers than can be drawn; narrow it")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, which is {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log and step contradict each other; remove one of the two")
        if self.step is not None and self.step > self.high - self.low:
            raise ValueError(f"step {self.step:g} is more than high - low, so only low could be drawn")
        if self.int and not all(float(each).is_integer() for each in (self.low, self.high, self.step or 0)):
            raise ValueError("int needs whole numbers as low, high and step")
        return self

    @property
    def count(self) -> float:
        """Quantity of the numbers that may be drawn; infinite without steps."""
        if not self.int and self.step is None:
            return math.inf
        return self._steps + 1

    @property
    def _steps(self) -> float:
        return math.floor((self.high - self.low) / (self.step or 1) + _ROUNDING)

    def draw(self, rng: random.Random) -> float:
        """Draw a number; a whole one is an int."""
        if self.log:
            found = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        elif self.int or self.step is not None:
            low, step = (Decimal(repr(float(each))) for each in (self.low, self.step or 1))
            found = min(float(low + rng.randint(0, round(self._steps)) * step), self.high)
            return round(found) if self.int else found
        else:
            found = rng.uniform(self.low, self.high)
        found = min(max(float(f"{found:.{_DIGITS}g}"), self.low), self.high)
        return round(found) if self.int else found


def _kind(value: object) -> str:
    return "tagged-range" if isinstance(value, Mapping | Range) else "tagged-values"


Values = Annotated[tuple[JsonValue, ...], Field(min_length=1)]
Choice = Annotated[
    Annotated[Values, Tag("tagged-values")] | Annotated[Range, Tag("tagged-range")], Discriminator(_kind)
]
Metric = Literal["mrr", "hits1", "hits10"]


class Halving(Frozen):
    """Rule of successive halving (Jamieson and Talwalkar 2016).

    All candidates train a few epochs, the best of them more, and so on. The last rung trains ``model.num_epochs``.

    Attributes:
        eta: one of so many candidates goes on to the next rung, which trains so many times the epochs.
        min_epochs: of the first rung, at least.
        rungs: their number; null: as many as ``min_epochs`` allows.
    """

    eta: Annotated[PositiveInt, Field(ge=2, le=16)] = 3
    min_epochs: PositiveInt = 1
    rungs: Annotated[PositiveInt, Field(ge=2)] | None = None

    def epochs(self, last: int) -> list[int]:
        """Return the epochs that each rung has trained at its end.

        Args:
            last: epochs of the last rung.

        Raises:
            ValueError: there are too few epochs for two rungs, or for ``rungs``.
        """
        found = [last]
        while found[0] // self.eta >= self.min_epochs and len(found) != self.rungs:
            found.insert(0, found[0] // self.eta)
        wanted = self.rungs or 2
        if len(found) < wanted:
            raise ValueError(
                f"{wanted} rungs with eta {self.eta} and min_epochs {self.min_epochs} need model.num_epochs of at "
                f"least {self.min_epochs * self.eta ** (wanted - 1)}, which is {last}"
            )
        return found


class Tune(Frozen):
    """Space of a search and the way through it.

    Attributes:
        space: values to try by the path of a key below ``model`` or ``train``: a list, or a range.
        samples: number of candidates, drawn at random; null: all combinations of the lists.
        seed: of the draw.
        halving: ends the training of the worse candidates early; null: all train to the end.
        metric: figure of the filtered ranks of the valid split, by which candidates are compared.
        max_candidates: a space with more combinations is refused.
        parallel: candidates that Airflow trains at once.
    """

    space: dict[Annotated[str, Field(min_length=1)], Choice] = Field(min_length=1)
    samples: PositiveInt | None = None
    seed: NonNegativeInt = 0
    halving: Halving | None = None
    metric: Metric = "mrr"
    max_candidates: Annotated[PositiveInt, Field(le=1000)] = 64
    parallel: PositiveInt = 4

    @property
    def combinations(self) -> float:
        """Number of different candidates; infinite with some ranges."""
        return math.prod(each.count if isinstance(each, Range) else len(each) for each in self.space.values())

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        for key, choice in self.space.items():
            if isinstance(choice, tuple) and len({canonical_json(each) for each in choice}) < len(choice):
                raise ValueError(f"space.{key}: names a value twice")
            if isinstance(choice, Range) and self.samples is None:
                raise ValueError(f"space.{key}: is a range, of which samples are drawn; give samples, or a list here")
        total = self.combinations
        if self.samples is not None and self.samples > total:
            raise ValueError(f"samples is {self.samples}, yet space has {total:g} combinations; give fewer")
        if (wanted := self.samples or total) > self.max_candidates:
            raise ValueError(
                f"{'samples' if self.samples else 'space'}: makes {wanted:g} candidates, and max_candidates is "
                f"{self.max_candidates}; give samples, or a higher limit"
            )
        return self
