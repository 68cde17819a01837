"""Messages to and from the process that examines files.

They are made of JSON and bytes, never of a pickle.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LENGTH = struct.Struct("<Q")


class Message(NamedTuple):
    """Message to or from the process.

    Attributes:
        body: JSON's part of the message.
        blobs: bytes beside it.
    """

    body: dict[str, Any]
    blobs: list[bytes]


def packed(body: dict[str, Any], blobs: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Yield the bytes of a message."""
    text = json.dumps({"body": body, "blobs": [len(blob) for blob in blobs]}).encode()
    yield _LENGTH.pack(len(text)) + text
    yield from blobs


def unpacked(read: Callable[[int], bytes], *, most: int) -> Message:
    """Read one message.

    Args:
        read: returns exactly as many bytes as requested, or raises.
        most: bytes that a message may have.

    Raises:
        ValueError: it is longer, or no message.
    """
    text = read(_bounded(_LENGTH.unpack(read(_LENGTH.size))[0], most))
    try:
        whole = json.loads(text)
        lengths = [int(length) for length in whole["blobs"]]
        body = whole["body"]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"no message: {error}") from None
    if not isinstance(body, dict) or min(lengths, default=0) < 0:
        raise ValueError("no message")
    _bounded(sum(lengths), most)
    return Message(body, [read(length) for length in lengths])


def _bounded(length: int, most: int) -> int:
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    return length
