"""Processes of the ``pbg`` command, forked from one that imported its libraries.

Importing torch, DuckDB and the SDK of S3 takes most of the CPU time of a command on a small graph. Each request is a
connection; the answers are the pid, and the status of the end. The command ends as any process of Python does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import socket
import sys

LIBRARIES = ("torch", "duckdb", "pyarrow.parquet", "pyarrow.dataset", "h5py", "boto3", "botocore.session")
TASKS = "pbg_tasks.tasks.nightly"
_FIRST = "pbg_tasks.cli", f"{TASKS}.chain", f"{TASKS}.plan", "pbg_tasks.tasks.training.train"
"""Modules that nearly all commands of tests import."""


def serve(listener: socket.socket) -> list[str]:
    """Answer requests; return, in a fork, with the arguments of its command."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)  # the process of the tests has ended, by whatever signal
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if pid := os.fork():
            connection.send(json.dumps(pid).encode())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                connection.send(json.dumps(status).encode())
            os._exit(0)
        connection.close()
        return _become(json.loads(request), streams)


def _become(request: dict[str, object], streams: list[int]) -> list[str]:
    """Take the streams, the environment and the folder of a command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    return request["arguments"]


if __name__ == "__main__":
    for name in (*LIBRARIES, *_FIRST):
        importlib.import_module(name)
    sys.argv[1:] = serve(socket.socket(fileno=int(sys.argv[1])))
    from pbg_tasks.cli import main

    main()
