"""Exchange of shared parameters while several ranks train them.

Each rank continuously sends its changes and receives those of the others. The mathematics is PBG's: a rank sends the
difference to the values that it knew, and the server adds it up and answers with the sum. So nothing is lost or counted
twice, whatever the order of the ranks. Unlike PBG, the exchange includes Adagrad's sums of squared gradients, as
parameters of their own, because adding up differences is the right way to merge them, too.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pbg_tasks.training.ranks.parameters.plan import plan_shards
from pbg_tasks.training.ranks.parameters.replica import Replica
from pbg_tasks.training.ranks.parameters.server import ParameterServer, ParameterUpdate
from pbg_tasks.training.ranks.transport.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from torch import Tensor

    from pbg_tasks.training.ranks.parameters.step_lock import StepLock
    from pbg_tasks.training.ranks.transport.renewal import Requester


class RemoteParameters:
    """Client of a remote ``ParameterServer``.

    Args:
        connection: connection to its service.
        traffic: counter of the transferred bytes.
    """

    def __init__(self, connection: Requester, traffic: Traffic) -> None:
        self._connection, self._traffic = connection, traffic

    def seed(self, key: str, lengths: np.ndarray, values: np.ndarray) -> None:
        """Set a shard; see ``ParameterStore``.

        Raises:
            RankLostError: the server did not answer.
        """
        self._ask("seed", key, lengths, values)

    def swap(self, key: str, versions: np.ndarray, changed: np.ndarray, deltas: np.ndarray) -> ParameterUpdate:
        """Add changes and return those of others; see ``ParameterStore``."""
        return ParameterUpdate(*self._ask("swap", key, versions, changed, deltas))

    def _ask(self, kind: str, key: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with self._traffic.request() as sizes:
            answer = self._connection.request(kind, *arrays, timeout=_SILENCE_SECONDS, shard=key).arrays
            sizes.extend(array.nbytes for array in (*arrays, *answer))
        return answer


_STALL_SHARE = 0.05  # share of the workers' time that they may wait at the step lock for an exchange
_CPU_SHARE = 0.1  # share of a core that the exchange may take from them
_PATIENCE_SECONDS = 1.0  # for an exchange under way, at the end
_SILENCE_SECONDS = 30.0  # after which a server counts as lost
_SHORTEST_PAUSE = 1e-3  # seconds; shorter pauses cost more than they give, so they are saved up


class ParameterExchange:
    """Synchronization of this rank's shared parameters with those of the others.

    An iteration is: ``resume``, train, ``flush``; when all ranks have flushed (a barrier), ``pull`` gives all of them
    the same bits. Before the first, rank 0 calls ``seed`` and, after a barrier, all call ``pull``. From ``flush`` until
    all have pulled (a barrier) no rank may train.

    Args:
        tensors: float32, contiguous, by name; trained in place.
        servers: servers of all trainers, in the order of ranks; a rank's own needs no connection.
        step_lock: lock within which every training step is made.
        interval: least number of seconds between two exchanges of a number.
        bandwidth: most bytes per second that are exchanged or compared.
        on_error: called in another thread with the error that ended the exchange.

    Attributes:
        swaps: number of exchanges of a shard.
        traffic: counter of the transferred bytes.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        servers: Sequence[Requester | ParameterServer],
        step_lock: StepLock,
        *,
        interval: float = 0.01,
        bandwidth: float = 1e8,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.swaps, self.traffic = 0, Traffic()
        stores = [
            server if isinstance(server, ParameterServer) else RemoteParameters(server, self.traffic)
            for server in servers
        ]
        shards = plan_shards({name: tensor.numel() for name, tensor in tensors.items()}, len(servers))
        self._replicas = [Replica(shard, tensors, stores[shard.server], step_lock) for shard in shards]
        self._step_lock, self._interval = step_lock, interval
        self._bandwidth, self._on_error = bandwidth, on_error
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._allowed = 0.0  # time at which the next shard may be exchanged

    def seed(self) -> None:
        """Send this rank's parameters to the servers, as those of all.

        Raises:
            RankLostError: a server did not answer.
        """
        self._each(Replica.seed)

    def pull(self) -> None:
        """Replace this rank's parameters by those of the servers, bit by bit.

        Raises:
            RankLostError: a server did not answer.
        """
        self._each(Replica.pull)

    def resume(self) -> None:
        """Begin to exchange in another thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="parameters", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Send all changes to the servers, and stop exchanging.

        Raises:
            RankLostError: a server did not answer, now or before.
        """
        self._halt(None)
        self._each(self._swap)

    def close(self) -> None:
        """Stop exchanging for good, without sending the remaining changes.

        A silent server is not waited for.
        """
        self._halt(_PATIENCE_SECONDS)

    def _halt(self, patience: float | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(patience)
            self._thread = None

    def _each(self, act: Callable[[Replica], object]) -> None:
        """Call a function with every shard, unless an error occurred before.

        A swap without an answer is never repeated, because the server may have added its numbers.
        """
        if self._error is not None:
            raise self._error
        try:
            for replica in self._replicas:
                act(replica)
        except BaseException as error:
            self._error = error
            raise

    def _swap(self, replica: Replica) -> int:
        moved = replica.swap()
        self.swaps += 1
        return moved

    # The methods below run in the other thread.

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                started = time.monotonic()
                self._round()
                self._stop.wait(started + self._interval - time.monotonic())
        except BaseException as error:  # noqa: BLE001 - raised again by ``flush``
            self._error = error
            self._on_error(error)

    def _round(self) -> None:
        """Exchange every shard once.

        It is no faster than the network, this machine and the workers allow.
        """
        for replica in self._replicas:
            started, stall = time.monotonic(), self._step_lock.stall
            worked = time.thread_time()
            moved = self._swap(replica)
            seconds = (
                max(moved, replica.nbytes) / self._bandwidth,
                (self._step_lock.stall - stall) / _STALL_SHARE,
                (time.thread_time() - worked) / _CPU_SHARE,
            )
            self._allowed = max(self._allowed, started) + max(seconds)
            pause = self._allowed - time.monotonic()
            if pause > _SHORTEST_PAUSE:
                self._stop.wait(pause)
            if self._stop.is_set():
                return
