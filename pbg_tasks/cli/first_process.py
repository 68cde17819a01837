"""End by SIGTERM of the first process of a container.

The kernel keeps from such a process every signal that it does not handle. So a pod would run on until SIGKILL, and end
with a status that no cluster takes for a request to end.
"""

from __future__ import annotations

import os
import signal
import socket
import threading

ENDED = 128 + signal.SIGTERM
"""Exit status by which a shell or container reports SIGTERM."""


def end_on_sigterm() -> None:
    """Make SIGTERM end this process, as it ends any other.

    It works within long calls of libraries, too. A handler that a command installs goes before it.
    """
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    signal.signal(signal.SIGTERM, _noted)
    signal.set_wakeup_fd(sending.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(receiving,), name="sigterm", daemon=True).start()


def _noted(*_: object) -> None:
    """Take a signal; the other thread acts."""


def _listen(receiving: socket.socket) -> None:
    while number := receiving.recv(1):
        if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is _noted:
            os._exit(ENDED)
