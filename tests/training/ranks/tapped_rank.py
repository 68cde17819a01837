"""A rank whose connections to others are recorded in a file.

``python -m tests.training.ranks.tapped_rank FILE ARGUMENTS``, with the arguments of ``pbg``.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from pbg_tasks.cli import main
from pbg_tasks.training.ranks.transport import wire
from tests.training.ranks.tap import Tap


class _File:
    """End of a file, as the record of a tap."""

    def __init__(self, path):
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - until the process ends

    def extend(self, data):
        self._file.write(data)


class _Tapped:
    """Module ``socket``, whose connections lead through a tap."""

    def __getattr__(self, name):
        return getattr(socket, name)

    @staticmethod
    def create_connection(address, timeout):
        return socket.create_connection(Tap(address, RECORD).address, timeout)


if __name__ == "__main__":
    RECORD = _File(sys.argv[1])
    wire.socket = _Tapped()
    sys.argv = ["pbg", *sys.argv[2:]]
    main()
