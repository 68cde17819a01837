"""The parameter server of another rank, over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.train.ranks.parameter_server import News

if TYPE_CHECKING:
    import numpy as np

    from pbg_tasks.train.ranks.traffic import Traffic
    from pbg_tasks.train.ranks.wire import Connection


class RemoteParameters:
    """Does what a ``ParameterServer`` does, by asking one.

    Args:
        connection: to its service.
        traffic: what crosses the wire is counted here.
        timeout: seconds of silence after which the server counts as lost.
    """

    def __init__(self, connection: Connection, traffic: Traffic, *, timeout: float) -> None:
        self._connection, self._traffic, self._timeout = connection, traffic, timeout

    def seed(self, key: str, lengths: np.ndarray, values: np.ndarray) -> None:
        """Set a shard; see ``ParameterStore``.

        Raises:
            RankLostError: the server did not answer.
        """
        self._ask("seed", key, lengths, values)

    def swap(self, key: str, versions: np.ndarray, changed: np.ndarray, deltas: np.ndarray) -> News:
        """Add and ask; see ``ParameterStore``."""
        return News(*self._ask("swap", key, versions, changed, deltas))

    def _ask(self, kind: str, key: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with self._traffic.request() as sizes:
            answer = self._connection.request(kind, *arrays, timeout=self._timeout, shard=key).arrays
            sizes.extend(array.nbytes for array in (*arrays, *answer))
        return answer
