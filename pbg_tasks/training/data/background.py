"""A thread that does one job after another beside the training thread.

The arguments of a job belong to the thread until the job's future is done, so two threads never use one object at a
time. Jobs begin in the order in which they were submitted, each after the one before has ended.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 0.1  # between two calls of a waiting caller's check

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Background:
    """A thread that works while its ``with`` block runs.

    Jobs may be submitted before the block begins. After a job has failed, no further job runs.

    The end of the block waits for the running job. Jobs that have not begun by then never run: call ``drain`` first
    where that matters.

    Args:
        name: of the thread.
        patience: seconds that the end of the block waits; None waits as long as the job takes.

    Attributes:
        patience: the argument.
        waited: seconds that callers spent waiting for jobs.
    """

    def __init__(self, name: str, *, patience: float | None = None) -> None:
        self.waited = 0.0
        self.patience = patience
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._error: BaseException | None = None

    def submit(self, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs) -> Future[Made]:
        """Queue a job and return its future.

        The future returns the job's result, or raises the error of the first job that failed. A job whose future is
        cancelled before its turn is skipped.
        """
        future: Future[Made] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self._error is not None:
                future.set_exception(self._error)
                return
            try:
                future.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where a result is waited for
                self._error = error
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def wait(self, future: Future[Made], check: Callable[[], None] | None = None) -> Made:
        """Wait for a job and return its result.

        Args:
            future: of the job.
            check: called repeatedly meanwhile; an exception that it raises ends the wait, but not the job.
        """
        started = time.perf_counter()
        try:
            while check is not None and not future.done():
                check()
                wait([future], _LOOK_SECONDS)
            return future.result()
        finally:
            self.waited += time.perf_counter() - started

    def drain(self) -> None:
        """Wait for every submitted job.

        Raises:
            BaseException: the error of the first job that failed.
        """
        self.wait(self.submit(lambda: None))

    def check(self) -> None:
        """Raise the error of the first job that failed, without waiting."""
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # its arguments are released with it

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._error = self._error or CancelledError()
        self._jobs.put(None)
        self._thread.join(self.patience)
