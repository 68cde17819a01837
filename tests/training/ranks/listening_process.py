"""Listener in a process that may open few files.

``python -m tests.training.ranks.listening_process FILES``
"""

from __future__ import annotations

import resource
import sys

from pbg_tasks.training.ranks.transport.wire import Listener
from tests.training.ranks.links import credentials, echo

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
    with Listener(credentials(0), {"echo": echo}, host="127.0.0.1") as listener:
        sys.stdout.write(f"{listener.address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
