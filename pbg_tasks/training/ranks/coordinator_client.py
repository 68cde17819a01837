"""Client of the coordinator: a question waits for its answer.

The wait ends also when the gang is broken.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.base import parse
from pbg_tasks.training.ranks.messages import Grant, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_tasks.checkpoint import StoredObject
    from pbg_tasks.training.ranks.coordinator import Coordinator
    from pbg_tasks.training.ranks.messages import Report
    from pbg_tasks.training.ranks.transport.wire import Connection

ANSWER_SECONDS = 90.0
"""An answer may take a record of what is stored, tried several times."""


class CoordinatorClient:
    """A rank's questions to the coordinator.

    Args:
        ask: sends a question and returns the answer.
        check: raises once the gang is broken.
    """

    def __init__(
        self, ask: Callable[[str, Mapping[str, Any]], tuple[str, Mapping[str, Any]]], check: Callable[[], None]
    ) -> None:
        self._ask, self._check = ask, check

    @classmethod
    def local(cls, coordinator: Coordinator, check: Callable[[], None], *, rank: int = 0) -> CoordinatorClient:
        """Ask a coordinator in this process."""
        return cls(lambda kind, fields: coordinator.answer(rank, kind, fields), check)

    @classmethod
    def remote(cls, connection: Connection, check: Callable[[], None]) -> CoordinatorClient:
        """Ask over a connection."""

        def ask(kind: str, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
            answer = connection.request(kind, timeout=ANSWER_SECONDS, **fields)
            return answer.kind, answer.fields

        return cls(ask, check)

    def next(
        self, iteration: int, report: Report | None, *, give: bool = True, check: Callable[[], None] = lambda: None
    ) -> Grant | None:
        """Hand in a report; return the next bucket, None after the last.

        Args:
            iteration: number of the one under way.
            report: on the bucket before, if there is one.
            give: False for a process that trains no bucket and waits for the end.
            check: called before each question; an error that it raises ends the wait.

        Raises:
            RankLostError: the gang is broken.
        """
        fields = {"iteration": iteration, "report": report.model_dump(mode="json") if report else None, "give": give}
        while True:
            self._check()
            check()
            kind, answer = self._ask("next", fields)
            if kind == "over":
                return None
            if kind == "lease":
                return parse(Grant, dict(answer), source="a lease")
            fields["report"] = None

    def meet(self, place: str, *, seconds: float | None = None) -> bool:
        """Wait until every rank has come to a place.

        Args:
            place: its name; every rank comes there once.
            seconds: limit of the wait, which then also ignores a broken gang and ranks that have left; None waits for
                all.

        Returns:
            Whether early stopping has ended the training by now; False where not all have come in time.

        Raises:
            RankLostError: the gang is broken.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            if end is None:
                self._check()
            kind, answer = self._ask("meet", {"place": place, "left": end is not None})
            if kind == "go":
                return bool(answer.get("over"))
        return False

    def reserve(self, iteration: int) -> Reservation | None:
        """Reserve the bucket after the present one, if one is free.

        Raises:
            RankLostError: rank 0 did not answer.
        """
        kind, answer = self._ask("reserve", {"iteration": iteration})
        return parse(Reservation, dict(answer), source="a reservation") if kind == "reserved" else None

    def put_away(self, lease: int, objects: Mapping[str, StoredObject]) -> None:
        """Report that a lease's partitions are stored, or with their servers.

        Args:
            lease: number of the lease.
            objects: stored partitions by PBG's file name; none where servers have them.

        Raises:
            ConflictError: this rank has no such lease.
        """
        listed = {name: stored.model_dump(mode="json") for name, stored in objects.items()}
        self._ask("put away", {"lease": lease, "objects": listed})

    def stored(self, name: str, stored: StoredObject) -> None:
        """Report that a partition was stored.

        Raises:
            ConflictError: it is older than what is stored.
        """
        self._ask("stored", {"name": name, "object": stored.model_dump(mode="json")})

    def leave(self, report: Report | None) -> None:
        """Hand in the last report, on a stopped or finished bucket."""
        self._ask("leave", {"report": report.model_dump(mode="json") if report else None})
