"""Frames as bytes, whole and damaged."""

from __future__ import annotations

import socket
import struct
import threading

from pbg_tasks.training.ranks.transport import frames


def sent(kind, fields, arrays):
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(
            target=lambda: (frames.send(here, kind, fields, arrays), here.shutdown(socket.SHUT_WR))
        )
        sender.start()
        data = b"".join(iter(lambda: there.recv(1 << 16), b""))
        sender.join()
        return data


def mutated(frame, generator):
    """Return a damaged frame.

    Some of its bytes or the header's text are changed, cut out, repeated or put elsewhere.
    """
    frame = bytearray(frame)
    for _ in range(generator.randint(1, 4)):
        place, length = generator.randrange(len(frame)), generator.randint(1, 12)
        match generator.randrange(5):
            case 0:
                frame[place] = generator.randrange(256)
            case 1:
                del frame[place : place + length]
            case 2:
                frame[place:place] = frame[place : place + length] * generator.randint(1, 20)
            case 3:
                frame[place : place + length] = generator.randbytes(length)
            case 4:
                frame[place:place] = generator.choice(TOKENS)
        if not frame:
            frame = bytearray(b"P")
    if generator.random() < 0.5 and len(frame) >= 8:  # a header with the right length is parsed further
        end = frame.rfind(b"}") + 1
        frame[:8] = struct.pack("!4sI", b"PBG\x01", max(end - 8, 0))
    return bytes(frame)


TOKENS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 50,
    b"9" * 5000,
    b"[" * 3000,
    b'"kind":"x",',
    b"\xff\xfe",
    b"\0",
    b"{}",
    b"\\ud800",
)
