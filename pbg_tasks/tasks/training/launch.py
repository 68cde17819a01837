"""``pbg train --ranks N``: a gang of processes on this machine.

It is started and ended as one, and started again where that may help.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

from pbg_tasks.errors import BY_EXIT_CODE, ERROR_FILE, EvictedError, PbgError, RankLostError, ResourceError
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.training.eviction import GRACE
from pbg_tasks.training.environment import number_of
from pbg_tasks.training.ranks.transport.certificates import Certificates, make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_tasks.config.results import Result

NOTICE_SECONDS = 5.0
"""Time in which ranks notice a lost one by themselves.

Ranks that are still waiting for it to come get a SIGTERM afterwards.
"""
GRACE_SECONDS = 75.0
"""A rank ends itself within a minute after its gang broke; what takes longer is killed.

After a SIGTERM ranks have the time that this process has, if that is longer.
"""
POLL_SECONDS = 0.1
LIFETIME = dt.timedelta(days=366)
"""Of a gang's certificates: longer than a training, as ``transport.renewal`` makes connections until its end."""


class Exit(NamedTuple):
    """End of a process of a gang.

    Attributes:
        rank: of the process.
        status: exit status; negative: the signal.
        reason: its last line of error.
        signalled: whether this command had sent it a signal to end.
    """

    rank: int
    status: int
    reason: str
    signalled: bool

    @property
    def error(self) -> PbgError:
        """The error that stands for it."""
        if self.status < 0:
            name = signal.Signals(-self.status).name
            return RankLostError(f"rank {self.rank} was ended by {name}; if not on purpose, memory ran out")
        kind = BY_EXIT_CODE.get(self.status, PbgError)
        return kind(self.reason.removeprefix(f"{kind.kind}: ") or f"rank {self.rank} ended with status {self.status}")


def launch(arguments: Sequence[str], *, ranks: int, servers: int, max_restarts: int, encrypted: bool = False) -> Result:
    """Run a gang of local processes to the end of its training.

    Args:
        arguments: of the ``pbg`` command that each process runs.
        ranks: trainers.
        servers: partition servers.
        max_restarts: how many more gangs may be started when one ends for a reason that may pass.
        encrypted: make certificates for each gang, unless the environment has some.

    Returns:
        What rank 0 printed.

    Raises:
        PbgError: of the class that the last gang failed with.
    """
    with _ending_signals() as ending:
        for attempt in range(max_restarts + 1):
            with _LocalGang(arguments, ranks + servers, encrypted=encrypted) as gang:
                error = gang.wait(ending)
                if error is None:
                    return gang.result()
            if ending.is_set():
                raise EvictedError("told to end (SIGTERM); what was trained is stored, and the next start goes on")
            if not error.retryable or attempt == max_restarts:
                raise RankLostError(f"{error}; run it again, it goes on") if isinstance(error, RankLostError) else error
            say(f"gang {attempt + 1} ended: {error}; starting another, {max_restarts - attempt} left")
    raise RuntimeError("no gang was started: a bug")


class _LocalGang:
    """The processes of one gang.

    They share a token and a meeting place that no other gang has, and certificates if they encrypt.
    """

    def __init__(self, arguments: Sequence[str], size: int, *, encrypted: bool) -> None:
        self._arguments, self._size = list(arguments), size
        makes = encrypted and Certificates.from_environment() is None
        self._certificates = make_certificates(LIFETIME).environment() if makes else {}
        self._processes: list[subprocess.Popen[str]] = []
        self._last_lines = [""] * size
        self._readers: list[threading.Thread] = []
        self._exits: list[Exit] = []

    def __enter__(self) -> Self:
        self._scratch = Scratch().__enter__()
        self._output = (self._scratch.path / "result").open("w+", encoding="utf-8")
        try:
            self._start()
        except BaseException as error:
            self.__exit__()  # else the processes that were started would wait for the others, and keep the checkpoint
            if not isinstance(error, (OSError, RuntimeError)):  # of a process, or of its reader's thread
                raise
            raise ResourceError(
                f"process {len(self._readers) + 1} of {self._size} cannot be started: {error}; raise `ulimit -u`, or "
                "the memory and pids of the cgroup, or start fewer ranks"
            ) from None
        return self

    def _start(self) -> None:
        common = {
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size),
            "PBG_RUN_TOKEN": secrets.token_hex(32),
            "PBG_INIT_METHOD": f"file://{self._scratch.path}/meeting",
            "GLOO_SOCKET_IFNAME": "lo",
            **self._certificates,
            ERROR_FILE: "",  # it is this command's, which succeeds where a later gang does
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # not a stack for every lost peer
        }
        # -P: the current directory must not shadow installed modules
        command = [sys.executable, "-P", "-m", "pbg_tasks", *self._arguments]
        for rank in range(self._size):
            process = subprocess.Popen(
                command,
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=self._output if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            self._processes.append(process)
            reader = threading.Thread(target=self._show, args=(rank, process), daemon=True)
            reader.start()
            self._readers.append(reader)

    def wait(self, ending: threading.Event) -> PbgError | None:
        """Return once all processes have ended.

        None if all succeeded, else the error that is closest to the cause.
        """
        notice, limit = float("inf"), float("inf")  # times of SIGTERM and SIGKILL for the processes that are left
        signalled = False
        left = dict(enumerate(self._processes))
        while left:
            is_ending = ending.is_set()  # once: a signal amid a look would leave the shorter time
            grace = max(GRACE_SECONDS, number_of(GRACE) or 0) if is_ending else GRACE_SECONDS
            for rank, process in list(left.items()):
                status = process.poll()
                if status is not None:
                    del left[rank]
                    self._readers[rank].join(1.0)
                    self._exits.append(Exit(rank, status, self._last_lines[rank], signalled))
                    if status:
                        now = time.monotonic()
                        notice, limit = min(notice, now + NOTICE_SECONDS), min(limit, now + grace)
            now = time.monotonic()
            if is_ending and limit == float("inf"):
                notice, limit = now, now + grace
            if now > notice:
                notice, signalled = float("inf"), True
                for process in left.values():
                    process.terminate()
            if now > limit:
                for process in left.values():
                    process.kill()
            time.sleep(POLL_SECONDS if left else 0.0)
        failed = [each for each in self._exits if each.status]
        return min(failed, key=_remoteness).error if failed else None

    def result(self) -> Result:
        """Return what rank 0 printed last."""
        self._output.seek(0)
        found: Result = json.loads(self._output.read().strip().splitlines()[-1])
        return found

    def _show(self, rank: int, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            text = line.rstrip()
            if text.startswith("error: "):
                self._last_lines[rank] = text.removeprefix("error: ")
            try:
                sys.stderr.write(f"[rank {rank}] {text}\n")
            except BlockingIOError:
                continue  # a terminal takes no more for the moment; a line less ends no training
            except OSError:  # its reader is gone; each rank would wait for ever once its own pipe is full
                process.terminate()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for process in self._processes:
            if process.stderr is not None:
                process.stderr.close()
        self._output.close()
        self._scratch.__exit__(None, None, None)


def _remoteness(each: Exit) -> tuple[bool, bool, bool, int]:
    """Order exits by how little their errors show of the cause.

    That of a rank which this command ended shows nothing, and that of one which only lost another rank little.
    """
    kind = BY_EXIT_CODE.get(each.status)
    ended = each.signalled and (each.status < 0 or kind is EvictedError)
    return ended, kind is RankLostError, each.status < 0, each.rank


@contextmanager
def _ending_signals() -> Iterator[threading.Event]:
    ending = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = {number: signal.signal(number, lambda *_: ending.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
