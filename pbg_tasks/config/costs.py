"""Prices of a night, and limits of its forecast.

They are never part of a run, because they change no result.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.limits import AtMost
from pbg_tasks.config.schema import NonNegativeFloat


class Costs(Frozen):
    """Prices, in ``currency``.

    Attributes:
        hour: price of an hour of a machine.
        gb_out: price of 10^9 bytes that are read from the store.
        gb_in: price of 10^9 bytes that are written to it.
        currency: its ISO 4217 code.
    """

    hour: NonNegativeFloat = 0.0
    gb_out: NonNegativeFloat = 0.0
    gb_in: NonNegativeFloat = 0.0
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "EUR"

    def of(self, hours: float, *, read: float, written: float) -> float:
        """Return the price of machine hours and of bytes read and written."""
        return hours * self.hour + read / 1e9 * self.gb_out + written / 1e9 * self.gb_in


class Limits(Frozen):
    """Limits of a night's forecast, checked before the night spends anything.

    Attributes:
        max_hours: of all tasks together.
        max_cost: of the night, by ``costs``.
    """

    max_hours: AtMost = AtMost()
    max_cost: AtMost = AtMost()
