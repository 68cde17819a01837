"""Messages between ranks as bytes.

A message has a JSON header of bounded size, and then the numbers of its arrays in their layout in memory. A frame is a
magic number with the version, the header's length (uint32, big-endian), the header as canonical JSON ``{"arrays":
[{"dtype", "shape"}], "fields", "kind"}``, and the bytes of each array in C order (little-endian). Nothing in it is ever
executed, and no memory is allocated before the sizes in the header were found to be within the limits.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pbg_tasks.config.base import canonical_json
from pbg_tasks.config.documents import parse_json
from pbg_tasks.errors import ConfigError, FormatError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pbg_tasks.training.ranks.transport.handshake import Stream

    Array = np.ndarray[Any, np.dtype[Any]]
    Into = Callable[[int, np.dtype[Any], tuple[int, ...]], Array] | Sequence[Array]

ERROR = "error"
"""Kind of message that may replace any other.

It has ``status`` (an exit code) and ``text``, and no arrays.
"""

_MAGIC = b"PBG\x01"  # the last byte is the version
_PREFIX = struct.Struct("!4sI")
_HEADER_BYTES = 1 << 20
_DIMENSIONS = 4
_EXTENT = (1 << 63) - 1  # the largest index of numpy
_DTYPES = {name: np.dtype(name) for name in ("<f4", "<f8", "<i4", "<i8", "|u1", "|b1")}
_BUFFERS_AT_ONCE = 64  # of one system call; POSIX guarantees only 16, Linux accepts 1024


class Message(NamedTuple):
    """Message from one rank to another.

    Attributes:
        kind: name of the message.
        fields: a JSON object.
        arrays: float32, float64, int32, int64, uint8 or bool, of at most 4 dimensions.
    """

    kind: str
    fields: Mapping[str, Any]
    arrays: tuple[Array, ...]


class _Promise(NamedTuple):
    """Header's description of an array that follows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def send(stream: Stream, kind: str, fields: Mapping[str, Any], arrays: Sequence[Array]) -> None:
    """Send a message; contiguous arrays are not copied.

    Raises:
        FormatError: the message is invalid; nothing was sent.
        OSError: the connection failed.
    """
    arrays = [np.asarray(array, order="C") for array in arrays]
    promised = [{"dtype": array.dtype.str, "shape": array.shape} for array in arrays]
    try:
        header = canonical_json({"kind": kind, "fields": fields, "arrays": promised}, allow_nan=False)
    except ValueError as error:
        raise FormatError(f"a message {kind!r} has fields that are no JSON: {error}") from None
    if len(header) > _HEADER_BYTES:
        raise FormatError(f"a message {kind!r} has a header of {len(header)} bytes, {_HEADER_BYTES} are allowed")
    for array in arrays:
        if array.dtype.str not in _DTYPES or array.ndim > _DIMENSIONS:
            raise FormatError(f"a message {kind!r} cannot hold an array of {array.dtype} with {array.ndim} dimensions")
    parts = deque([memoryview(_PREFIX.pack(_MAGIC, len(header)) + header)])
    parts.extend(_bytes_of(array) for array in arrays if array.size)
    while parts:
        sent = stream.sendmsg(list(itertools.islice(parts, _BUFFERS_AT_ONCE)))
        while parts and sent >= len(parts[0]):
            sent -= len(parts.popleft())
        if sent:
            parts[0] = parts[0][sent:]


def receive(stream: Stream, limit: int, into: Into | None = None) -> Message:
    """Receive a message, with its arrays directly in their final memory.

    Args:
        stream: at the beginning of a message.
        limit: most bytes of its arrays in total.
        into: C-contiguous arrays to fill, or a function that returns them; None: new arrays. An ``ERROR`` does not use
            them.

    Raises:
        FormatError: the data are no message, or its arrays are not allowed or not those of ``into``.
        ResourceError: there is no memory for its arrays.
        EOFError: the stream ended.
        OSError: the connection failed.
    """
    magic, length = _PREFIX.unpack(_read(stream, _PREFIX.size))
    if magic != _MAGIC:
        raise FormatError(f"a message begins with {magic!r} instead of {_MAGIC!r}")
    if length > _HEADER_BYTES:
        raise FormatError(f"a message promises a header of {length} bytes, {_HEADER_BYTES} are allowed")
    kind, fields, promises = _parse(_read(stream, length))
    total = sum(promise.size for promise in promises)
    if total > limit:
        raise FormatError(f"a message {kind!r} promises {total} bytes of arrays, {limit} are allowed")
    if into is not None and not callable(into) and kind != ERROR and len(into) != len(promises):
        raise FormatError(f"a message {kind!r} has {len(promises)} arrays instead of {len(into)}")
    arrays = []
    for index, promise in enumerate(promises):
        array = _place(kind, index, promise, into)
        if array.size:
            _fill(stream, _bytes_of(array))
        arrays.append(array)
    return Message(kind, fields, tuple(arrays))


def _parse(header: bytearray) -> tuple[str, dict[str, Any], list[_Promise]]:
    try:
        match parse_object(header):
            case {"kind": str(kind), "fields": dict(fields), "arrays": list(promised), **rest} if not rest:
                return kind, fields, [_promise(**one) for one in promised]
    except (ValueError, TypeError, KeyError) as error:
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise FormatError(f"a message has a header that is none{reason}") from None
    raise FormatError("a message has a header that is none")


def parse_object(data: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object that another rank made.

    It must be strict UTF-8, without repeated keys and invalid numbers.

    Raises:
        ValueError: the data are anything else.
    """
    try:
        found = parse_json(data.decode("utf-8"), source="message of another rank")
    except (ConfigError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} instead of an object")  # noqa: TRY004 - an error in data, not in a program
    if b"\\u" in data:
        canonical_json(found)  # half of a surrogate pair could be neither printed nor sent again
    return found


def _promise(*, dtype: str, shape: list[int]) -> _Promise:
    sound = len(shape) <= _DIMENSIONS and all(type(extent) is int and 0 <= extent <= _EXTENT for extent in shape)
    if not sound:
        raise ValueError
    return _Promise(_DTYPES[dtype], tuple(shape))


def _place(kind: str, index: int, promise: _Promise, into: Into | None) -> Array:
    if into is None:
        try:
            return np.empty(promise.shape, promise.dtype)
        except (MemoryError, ValueError) as error:
            raise ResourceError(f"no memory for {promise.size} bytes of a message {kind!r}") from error
    array = into(index, promise.dtype, promise.shape) if callable(into) else into[index]
    if array.dtype != promise.dtype or array.shape != promise.shape or not array.flags.c_contiguous:
        raise FormatError(
            f"array {index} of a message {kind!r} is {promise.dtype} {list(promise.shape)}, and there is place for "
            f"{array.dtype} {list(array.shape)}"
        )
    return array


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _read(stream: Stream, size: int) -> bytearray:
    data = bytearray(size)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: Stream, view: memoryview) -> None:
    while view:
        count = stream.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
