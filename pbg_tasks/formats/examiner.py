"""Separate process that examines files of unknown origin.

Such a file may crash the HDF5 library, or keep it busy. The process protects this one from that. It is started at the
first such file, takes one file after the other, and ends with this process. A file that ends it is refused, and the
next file gets a new process.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from pbg_tasks.errors import FormatError, ResourceError, one_line
from pbg_tasks.formats.frames import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_tasks.formats.frames import Message

SECONDS = 5.0
"""Seconds of computing time that a small file gets."""
MEMORY = 1 << 30
"""Bytes of address space that a small file gets."""
_BYTES_PER_SECOND = 20 << 20  # least speed for larger files; today's machines are several times faster
_MEMORY_PER_BYTE = 6  # address space for each byte of a blob: itself, its parts, and the numbers made of them
_WAITING = 12  # clock seconds for each second of computing: the machine may be busy, the disk slow
_START_SECONDS = 120.0
_READY = b"ready\n"
_MOST_TEXT = 1 << 15
_INHERITED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "PYTHONHOME",
    "HDF5_USE_FILE_LOCKING",
    "PYTHONDONTWRITEBYTECODE",
)
"""Environment variables that the process gets; credentials are not among them."""


class _EndedError(Exception):
    """Error: the process ended before it answered."""


class _LateError(Exception):
    """Error: the process did not answer in time."""


class Examiner:
    """Process that examines files, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, task: str, where: str, body: dict[str, Any], blobs: Sequence[bytes] = (), *, size: int) -> Message:
        """Run a task of ``formats.examining`` in the process.

        Args:
            task: its name.
            where: name of the file in messages.
            body: input of the task.
            blobs: same, as bytes.
            size: bytes that the task may have to read.

        Raises:
            FormatError: the file is damaged, crashes the library, or takes too much memory or time.
            ResourceError: the process cannot be started, or the machine ended it or is too slow for it.
        """
        seconds = SECONDS + size / _BYTES_PER_SECOND
        memory = MEMORY + _MEMORY_PER_BYTE * size
        request = {**body, "task": task, "seconds": seconds, "memory": memory}
        with self._lock:
            process = self._running()
            try:
                answer = self._exchange(process, request, blobs, seconds * _WAITING, most=memory)
            except _LateError:
                self.stop()
                raise ResourceError(
                    f"{where}: looking at it took longer than {seconds * _WAITING:.0f} s, most of them waiting: the "
                    "disk or the machine is too slow at present; try again"
                ) from None
            except (_EndedError, ValueError):
                raise self._failure(where, process, seconds) from None
            except BaseException:
                self.stop()  # its answer must not be taken for that to the next request
                raise
        return _checked(where, answer, memory)

    def stop(self) -> None:
        """End the process; the next task starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _close(process)
            process.wait()

    def forget(self) -> None:
        """Leave the process to the parent, after a fork."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            process.returncode = 0  # it is no child of this process, which cannot wait for it

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._process is None:
            self._process = _started()
        return self._process

    def _exchange(
        self,
        process: subprocess.Popen[bytes],
        body: dict[str, Any],
        blobs: Sequence[bytes],
        seconds: float,
        *,
        most: int,
    ) -> Message:
        deadline = time.monotonic() + seconds
        for part in packed(body, blobs):
            _write(process, part, deadline)
        return unpacked(lambda length: _read(process, length, deadline), most=most)

    def _failure(self, where: str, process: subprocess.Popen[bytes], seconds: float) -> FormatError | ResourceError:
        """Return an error with the cause of the process's end."""
        try:
            status = process.wait(_WAITING)
        except subprocess.TimeoutExpired:
            status = 0  # it sent an invalid answer and still runs
        self.stop()
        if status == -signal.SIGKILL:
            return ResourceError(
                f"{where}: the process that looks at it was killed, as the system does when memory runs out; give the "
                "machine more memory, or try again"
            )
        if status == -signal.SIGPROF:
            return FormatError(
                f"{where}: damaged HDF5 file: looking at it took longer than {seconds:.0f} s of computing; get it "
                "again from its source"
            )
        cause = f"status {status}"
        with suppress(ValueError):  # real-time signals have no name
            cause = signal.Signals(-status).name
        return FormatError(
            f"{where}: damaged HDF5 file: it crashed the HDF5 library ({cause}), in a process apart from this one; "
            "get it again from its source"
        )


def _checked(where: str, answer: Message, memory: int) -> Message:
    body = answer.body
    if "error" in body:
        raise FormatError("".join(each if each.isprintable() else "?" for each in str(body["error"])[:_MOST_TEXT]))
    if "damaged" in body:
        raise FormatError(f"{where}: damaged HDF5 file: {one_line(str(body['damaged']))[:300]}")
    if "unreadable" in body:
        raise FormatError(f"{where}: cannot be read: {str(body['unreadable'])[:200]}")
    if "memory" in body:
        raise FormatError(
            f"{where}: damaged HDF5 file: looking at it takes more than {memory >> 20} MiB of memory; get it again "
            "from its source"
        )
    return answer


def _started() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "pbg_tasks.formats.examining"]
    with _log() as log:
        try:
            process = subprocess.Popen(
                command,
                bufsize=0,  # after a fork while a thread writes, a buffer would stay locked for ever
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        except OSError as error:
            raise ResourceError(f"cannot start a process that looks at HDF5 files: {error.strerror}") from None
        try:
            if _read(process, len(_READY), time.monotonic() + _START_SECONDS) == _READY:
                return process
        except (_EndedError, _LateError):
            pass
        process.kill()
        process.communicate()
        log.seek(0)
        printed = " ".join(log.read().decode("utf-8", "replace").split())[-500:]
        raise ResourceError(
            f"cannot start a process that looks at HDF5 files: {printed or f'status {process.returncode}'}"
        )


@contextmanager
def _log() -> Iterator[IO[bytes]]:
    """Open a file for what the process prints."""
    with ExitStack() as opened:
        try:
            log = opened.enter_context(tempfile.TemporaryFile())
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise ResourceError(
                f"cannot start a process that looks at HDF5 files: {error.strerror}{where}; free some space, or set "
                "TMPDIR to a directory that can be written to"
            ) from None
        yield log


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # closing flushes a request that was not sent in full
                pipe.close()


def _write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    """Write all of ``data`` to a process that may have stopped reading."""
    assert process.stdin is not None  # noqa: S101 - made with pipes
    os.set_blocking(process.stdin.fileno(), False)
    rest = memoryview(data)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while rest:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _LateError
            try:
                rest = rest[os.write(process.stdin.fileno(), rest) :]
            except BrokenPipeError:
                raise _EndedError from None


def _read(process: subprocess.Popen[bytes], length: int, deadline: float) -> bytes:
    """Read exactly ``length`` bytes."""
    assert process.stdout is not None  # noqa: S101 - made with pipes
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(data) < length:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _LateError
            part = os.read(process.stdout.fileno(), min(length - len(data), 1 << 20))
            if not part:
                raise _EndedError
            data += part
    return bytes(data)


EXAMINER = Examiner()
"""Examiner of this process."""
atexit.register(EXAMINER.stop)
os.register_at_fork(after_in_child=EXAMINER.forget)
