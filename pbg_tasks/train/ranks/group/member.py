"""This process in its gang: told to end from outside, or by what became of another rank."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pbg_tasks.errors import EvictedError, PbgError

if TYPE_CHECKING:
    from pbg_tasks.train.ranks.group.member_registry import Membership


class Member:
    """Knows whether this rank has to stop, and why.

    Attributes:
        evicted: set, by a signal's handler, when the process was told to end.
        doing: what the others are told if this rank is lost.
    """

    def __init__(self) -> None:
        self.evicted = threading.Event()
        self._membership: Membership | None = None

    def join(self, membership: Membership) -> None:
        """Belong to a gang; before, and without one, nobody else can break it."""
        self._membership = membership

    @property
    def doing(self) -> str:
        """What this rank is at."""
        return "" if self._membership is None else self._membership.doing

    @doing.setter
    def doing(self, text: str) -> None:
        if self._membership is not None:
            self._membership.doing = text

    def stopping(self) -> bool:
        """Tell whether to stop at the next batch."""
        return self.evicted.is_set() or (self._membership is not None and self._membership.broken.is_set())

    def check(self) -> None:
        """Go on, or say why not.

        Raises:
            EvictedError: this process was told to end.
            PbgError: of the class of what broke the gang.
        """
        if self.evicted.is_set():
            raise EvictedError("told to end (SIGTERM); what was trained is stored, the next start goes on from there")
        if self._membership is not None:
            self._membership.check()

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank goes, and why; the first who says so is heard."""
        if self._membership is not None:
            known = error if isinstance(error, PbgError) else PbgError(f"{type(error).__name__}: {error}")
            self._membership.fail(known)
