"""Program of the process in which files of unknown origin are examined.

The HDF5 library runs in it for files that no hash vouches for. ``formats.examiner`` starts it as ``python -m
pbg_tasks.formats.examining``. It takes one request at a time from its standard input and answers on its standard
output. Each request has its limits of memory and computing time, which the kernel enforces. Whatever a hostile file
makes this process do, it can write no file and has no credentials.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.frames import Message, packed, unpacked
from pbg_tasks.formats.hdf5_header import PART, Hdf5Header
from pbg_tasks.formats.layout import read_layout
from pbg_tasks.formats.optimizer import state_sums

if TYPE_CHECKING:
    from collections.abc import Callable

READY = b"ready\n"
_MOST = 1 << 40
_FIRST_MEMORY, _MOST_MEMORY = resource.getrlimit(resource.RLIMIT_AS)


def layout(body: dict[str, Any], blobs: list[bytes]) -> Message:
    """Answer with a file's layout and its version.

    Where parts of the file are missing here, answer with their numbers.
    """
    if "path" in body:
        path = Path(body["path"])
        status = path.stat()
        found = read_layout(path, status.st_size)
        identity = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
        return Message(_described(found) | {"identity": identity}, found.blobs)
    file = Hdf5Header(body["name"], body["size"])
    file.parts.update(zip(body["parts"], blobs, strict=True))
    if any(len(part) > PART for part in blobs):
        raise ValueError("a part that is too long")
    try:
        found = read_layout(file, body["size"])
    except FormatError:
        if not file.missing:
            raise
    if file.missing:
        return Message({"missing": sorted(file.missing)}, [])
    return Message(_described(found), found.blobs)


def sums(body: dict[str, Any], blobs: list[bytes]) -> Message:
    """Answer with the sums in an optimizer's blob, as bytes of float32."""
    found = state_sums(blobs[0], [tuple(shape) for shape in body["shapes"]], source=body["source"])
    return Message({"found": found is not None}, [value.tobytes() for value in found or ()])


TASKS: dict[str, Callable[[dict[str, Any], list[bytes]], Message]] = {"layout": layout, "sums": sums}


def _described(found: Any) -> dict[str, Any]:  # noqa: ANN401 - the layout's own values
    return {"attributes": found.attributes, "groups": found.groups, "datasets": found.datasets}


def _answer(request: Message) -> Message:
    body = request.body
    _limit_memory(body["memory"])
    signal.setitimer(signal.ITIMER_PROF, body["seconds"])  # the timer's signal ends the process
    try:
        return TASKS[body["task"]](body, request.blobs)
    except FormatError as error:
        return Message({"error": str(error)}, [])
    except OSError as error:
        return Message({"unreadable": error.strerror or str(error)}, [])
    except MemoryError:
        return Message({"memory": True}, [])
    except Exception as error:  # noqa: BLE001 - of damage that none of the above foresaw
        return Message({"damaged": f"{type(error).__name__}: {error}"}, [])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _limit_memory(None)  # the next request may be longer than this one's limit


def _limit_memory(size: int | None) -> None:
    """Limit the address space, in bytes; None restores the first limit."""
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_FIRST_MEMORY if size is None else size, _MOST_MEMORY))


def main() -> None:
    """Answer requests until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends the parent, and that ends this process
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_RDWR)
    for standard in (1, 2):  # the library's own messages are dropped
        os.dup2(quiet, standard)
    sink.write(READY)
    sink.flush()

    def read(length: int) -> bytes:
        data = source.read(length)
        if len(data) < length:
            raise SystemExit
        return data

    while True:
        for part in packed(*_answer(unpacked(read, most=_MOST))):
            sink.write(part)
        sink.flush()


if __name__ == "__main__":
    main()
