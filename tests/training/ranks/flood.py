"""A flood of connections by strangers, as a process of its own.

``python -m tests.training.ranks.flood COUNT PORT|pid:N KINDS`` presses on a port, or on all at which a process listens.
Every connection that is closed is opened again at once, so that there are always COUNT of them, until the process is
killed. By turns they are of the KINDS: ``silent`` sends nothing, ``slow`` begins a hello of this protocol a byte at a
time, ``garbage`` sends something else.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import time
from pathlib import Path

HOST = "127.0.0.1"
SLOW = b"PBGh\x03" + bytes(400)
SLOW_SECONDS = 0.2
GARBAGE = (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\x01", b"PBGh\x03" + b"\xff" * 300, bytes(10_000))


class Stranger:
    def __init__(self, port, kind):
        self.port, self.kind, self.sent, self.due = port, kind, 0, 0.0
        self.stream = None

    def press(self):
        """Connect again if closed, and act a little, without waiting.

        The action is that of the kind.
        """
        if self.stream is None or self.is_closed():
            self.connect()
        with contextlib.suppress(OSError):
            if self.kind == "slow" and time.monotonic() > self.due:
                self.sent += self.stream.send(SLOW[self.sent : self.sent + 1])
                self.due = time.monotonic() + SLOW_SECONDS
            elif self.kind in GARBAGE and not self.sent:
                self.sent += self.stream.send(self.kind)

    def connect(self):
        if self.stream is not None:
            self.stream.close()
        self.stream, self.sent = socket.socket(), 0
        self.stream.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.stream.connect((HOST, self.port))

    def is_closed(self):
        try:
            return not self.stream.recv(1000)
        except BlockingIOError:
            return False
        except OSError:
            return True


def listening_ports(pid):
    """Return the TCP ports at which a process listens."""
    inodes, ports = set(), set()
    with contextlib.suppress(OSError):  # the process has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def main(count, where, *names):
    garbage = itertools.cycle(GARBAGE)
    strangers = {}
    looked = 0.0
    ports = set() if where.startswith("pid:") else {int(where)}
    while True:
        if where.startswith("pid:") and time.monotonic() > looked + 0.05:
            ports, looked = listening_ports(where.removeprefix("pid:")), time.monotonic()
        for port in ports - strangers.keys():
            kinds = itertools.islice(itertools.cycle(names), int(count))
            strangers[port] = [Stranger(port, next(garbage) if kind == "garbage" else kind) for kind in kinds]
            sys.stdout.write(f"{port}\n")
            sys.stdout.flush()
        for port in ports:
            for stranger in strangers[port]:
                stranger.press()
        time.sleep(0.001)


if __name__ == "__main__":
    main(*sys.argv[1:])
