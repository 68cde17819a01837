"""Shared parameters while several ranks train them: each gives what it changed and takes what others did, all along.

The mathematics is PBG's: a rank sends the difference to what it knew, the server adds it up and answers with the sum.
So nothing is lost or counted twice, however the ranks take turns. Unlike PBG, Adagrad's sums of squared gradients are
exchanged as well, as parameters of their own: adding up differences is the right way to merge them, too.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pbg_tasks.train.ranks.parameters.plan import plan_shards
from pbg_tasks.train.ranks.parameters.replica import Replica
from pbg_tasks.train.ranks.parameters.server import ParameterServer, ParameterUpdate
from pbg_tasks.train.ranks.transport.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from torch import Tensor

    from pbg_tasks.train.ranks.parameters.step_lock import StepLock
    from pbg_tasks.train.ranks.transport.wire import Connection


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

    def swap(self, key: str, versions: np.ndarray, changed: np.ndarray, deltas: np.ndarray) -> ParameterUpdate:
        """Add and ask; see ``ParameterStore``."""
        return ParameterUpdate(*self._ask("swap", key, versions, changed, deltas))

    def _ask(self, kind: str, key: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with self._traffic.request() as sizes:
            answer = self._connection.request(kind, *arrays, timeout=self._timeout, shard=key).arrays
            sizes.extend(array.nbytes for array in (*arrays, *answer))
        return answer


_STALL_SHARE = 0.05  # of the workers' time, at most, they wait at the gate for what comes from others
_CPU_SHARE = 0.1  # of a core, at most, exchanging takes from them
_PATIENCE_SECONDS = 1.0  # for an exchange under way, at the end
_SHORTEST_PAUSE = 1e-3  # seconds; shorter ones cost more than they give, so they are saved up


class ParameterExchange:
    """Keeps this rank's shared parameters together with those of the others.

    An iteration is: ``resume``, train, ``flush``; when all ranks have flushed (a barrier), ``pull`` gives all of them
    the same bits. Before the first, rank 0 calls ``seed`` and, after a barrier, all call ``pull``. From ``flush`` until
    all have pulled (a barrier) nobody trains.

    Args:
        tensors: float32, contiguous, by name; trained in place.
        servers: of all trainers, in the order of ranks; one's own needs no connection.
        step_lock: every training step is taken inside.
        interval: seconds between two exchanges of a number, at least.
        bandwidth: bytes per second that are exchanged or looked through, at most.
        on_error: told, in another thread, why there will be no more exchanges.
        timeout: seconds of silence after which a server counts as lost.

    Attributes:
        swaps: exchanges of a shard.
        traffic: what crossed the wire.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        servers: Sequence[Connection | ParameterServer],
        step_lock: StepLock,
        *,
        interval: float = 0.01,
        bandwidth: float = 1e8,
        on_error: Callable[[BaseException], None],
        timeout: float = 30.0,
    ) -> None:
        self.swaps, self.traffic = 0, Traffic()
        stores = [
            server if isinstance(server, ParameterServer) else RemoteParameters(server, self.traffic, timeout=timeout)
            for server in servers
        ]
        shards = plan_shards({name: tensor.numel() for name, tensor in tensors.items()}, len(servers))
        self._replicas = [Replica(shard, tensors, stores[shard.server], step_lock) for shard in shards]
        self._step_lock, self._interval, self._bandwidth, self._on_error = step_lock, interval, bandwidth, on_error
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._allowed = 0.0  # from when on the next shard may be exchanged

    def seed(self) -> None:
        """Make this rank's parameters everybody's.

        Raises:
            RankLostError: a server did not answer.
        """
        self._each(Replica.seed)

    def pull(self) -> None:
        """Make this rank's parameters what the servers have, bit by bit.

        Raises:
            RankLostError: a server did not answer.
        """
        self._each(Replica.pull)

    def resume(self) -> None:
        """Exchange from now on, in another thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="parameters", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Give the servers everything that was trained, and exchange no more.

        Raises:
            RankLostError: a server did not answer, now or before.
        """
        self._halt(None)
        self._each(self._swap)

    def close(self) -> None:
        """Exchange no more, for good; what the servers were not given, they are not given.

        A server that is silent is not waited for.
        """
        self._halt(_PATIENCE_SECONDS)

    def _halt(self, patience: float | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(patience)
            self._thread = None

    def _each(self, act: Callable[[Replica], object]) -> None:
        """Do something with every shard, unless something went wrong before.

        A swap without an answer is never tried again: the server may have added what it was given.
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

    # What follows runs in the other thread.

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                started = time.monotonic()
                self._round()
                self._stop.wait(started + self._interval - time.monotonic())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever flushes
            self._error = error
            self._on_error(error)

    def _round(self) -> None:
        """Exchange every shard once, no faster than the wire, this machine and the workers can spare."""
        for replica in self._replicas:
            started, stall, worked = time.monotonic(), self._step_lock.stall, time.thread_time()
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
