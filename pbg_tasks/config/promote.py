"""Promotion of a graph's releases to the channel that readers follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.names import Name
from pbg_tasks.config.schema import PositiveInt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.config.exports import Export
    from pbg_tasks.config.nights import Walk


class Promote(Frozen):
    """Rules by which the readers' channel takes over releases of nights.

    Without a rule releases are promoted by hand.

    Attributes:
        to: name of the readers' channel.
        after_nights: promote the newest release once that many nights in a row have passed the gates; null: never.
        share: until a release is promoted, let this share of the keys read it; null: none.
        other_space: whether a release may be promoted or shared whose vectors cannot be compared with those that the
            readers have.
    """

    to: Name
    after_nights: PositiveInt | None = None
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    other_space: bool = False

    @property
    def is_automatic(self) -> bool:
        """Whether a night promotes or shares its release by itself."""
        return self.after_nights is not None or self.share is not None

    def check(self, nights: str, walk: Walk, exports: Iterable[Export]) -> None:
        """Refuse rules by which no release could be promoted, or only half.

        Args:
            nights: channel to which nights publish.
            walk: how nights depend on each other.
            exports: of each night, whose vector stores serve a channel.

        Raises:
            ValueError: they are such rules; the message has the remedy.
        """
        if self.to == nights:
            raise ValueError(
                f"promote.to is {nights!r}, to which nights publish; give nights a channel of their own, such as "
                "channel: shadow"
            )
        if self.is_automatic and walk == "independent" and not self.other_space:
            raise ValueError(
                "nights.walk is independent, so the vectors of each night are in a space of their own, and no night "
                "could be promoted; set promote.other_space: true if no reader compares vectors of two nights"
            )
        if fixed := [each.name for each in exports if each.is_sink and each.options.get("collection")]:
            raise ValueError(
                f"exports {fixed[0]}: options.collection is one for {nights} and for {self.to} of promote.to, which "
                "would move its aliases in turn; leave it out, so that each channel has its own"
            )
