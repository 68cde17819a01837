"""Carriers of an array between two processes: client and server.

All do the same two requests of a partition server: ``get`` returns an array, which the client receives into new memory;
``put`` brings one, which the server receives so.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc
import numpy as np

from pbg_tasks.training.ranks.transport.certificates import NAME, Certificates
from pbg_tasks.training.ranks.transport.connection import Connection
from pbg_tasks.training.ranks.transport.handshake import Peer
from pbg_tasks.training.ranks.transport.tls import SecureStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PATIENCE = 120.0  # seconds
SERVICE = "partitions"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""gRPC's limits of a message. Its options for larger frames and reads changed nothing that could be measured."""


class Carrier(NamedTuple):
    """A way to carry arrays.

    Attributes:
        name: for the table.
        kind: ``frames`` or ``grpc``.
        tls: whether both sides show a certificate, and all is encrypted.
        local: over a UNIX-domain socket instead of TCP on the loopback interface.
        chunk: bytes of a message of gRPC.
    """

    name: str
    kind: str
    tls: bool = False
    local: bool = False
    chunk: int = 0


CARRIERS = (
    Carrier("frames (today)", "frames"),
    Carrier("frames, UNIX socket", "frames", local=True),
    Carrier("frames over TLS", "frames", tls=True),
    Carrier("gRPC, 1 MB chunks", "grpc", chunk=1 << 20),
    Carrier("gRPC, 4 MB chunks", "grpc", chunk=4 << 20),
    Carrier("gRPC, 1 MB, UNIX socket", "grpc", local=True, chunk=1 << 20),
    Carrier("gRPC over TLS, 1 MB", "grpc", tls=True, chunk=1 << 20),
    Carrier("gRPC over TLS, 4 MB", "grpc", tls=True, chunk=4 << 20),
)
"""All that are compared; the first is what the others are compared with."""


class Client(Protocol):
    """Requests of a partition server."""

    def get(self, size: int) -> Bytes:
        """Return an array of so many bytes."""
        ...

    def put(self, array: Bytes) -> None:
        """Bring an array."""
        ...


def serve(carrier: Carrier, directory: Path, ready: Callable[[str], None]) -> None:
    """Serve one client until the process ends.

    Args:
        carrier: what to speak.
        directory: for a UNIX-domain socket.
        ready: called with the address once it can be reached.
    """
    (_serve_frames if carrier.kind == "frames" else _serve_grpc)(carrier, directory, ready)


def connect(carrier: Carrier, address: str) -> Client:
    """Connect to a server."""
    return (_Frames if carrier.kind == "frames" else _Grpc)(carrier, address)


def _certificates() -> Certificates:
    found = Certificates.from_environment()
    if found is None:
        raise RuntimeError("the environment has no certificates")
    return found


def _connection(stream: socket.socket, carrier: Carrier, *, server: bool) -> Connection:
    if not carrier.local:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.settimeout(PATIENCE)
    used: Any = stream
    if carrier.tls:
        used = SecureStream(stream, _certificates(), server=server)
        used.secure(time.monotonic() + PATIENCE)
    return Connection(used, Peer(0, "partition-server"))


def _serve_frames(carrier: Carrier, directory: Path, ready: Callable[[str], None]) -> None:
    if carrier.local:
        path = str(directory / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        ready(path)
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        ready(str(listener.getsockname()[1]))
    connection = _connection(listener.accept()[0], carrier, server=True)
    held: dict[int, Bytes] = {}
    while True:
        message = connection.receive(timeout=None)
        if message.kind == "get":
            connection.send("table", _held(held, message.fields["size"]))
        else:
            connection.send("ok")


def _held(held: dict[int, Bytes], size: int) -> Bytes:
    if size not in held:
        held[size] = np.ones(size, np.uint8)
    return held[size]


class _Frames:
    def __init__(self, carrier: Carrier, address: str) -> None:
        if carrier.local:
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(address)
        else:
            stream = socket.create_connection(("127.0.0.1", int(address)))
        self._connection = _connection(stream, carrier, server=False)

    def get(self, size: int) -> Bytes:
        return self._connection.request("get", timeout=PATIENCE, size=size).arrays[0]

    def put(self, array: Bytes) -> None:
        self._connection.request("put", array, timeout=PATIENCE)


def _chunks(array: Bytes, chunk: int) -> Iterator[bytes]:
    view = array.data
    for begin in range(0, len(view), chunk):
        yield bytes(view[begin : begin + chunk])  # gRPC takes nothing but bytes


def _collected(size: int, chunks: Iterable[bytes]) -> Bytes:
    array, at = np.empty(size, np.uint8), 0
    for chunk in chunks:
        array.data[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at != size:
        raise RuntimeError(f"{at} of {size} bytes came")
    return array


def _serve_grpc(carrier: Carrier, directory: Path, ready: Callable[[str], None]) -> None:
    held: dict[int, Bytes] = {}

    def get(request: bytes, _: object) -> Iterator[bytes]:
        return _chunks(_held(held, int(request)), carrier.chunk)

    def put(chunks: Iterator[bytes], _: object) -> bytes:
        _collected(int(next(chunks)), chunks)
        return b"ok"

    handlers = {
        "get": grpc.unary_stream_rpc_method_handler(get),
        "put": grpc.stream_unary_rpc_method_handler(put),
    }
    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    address = f"unix:{directory / 'socket'}" if carrier.local else "127.0.0.1:0"
    if carrier.tls:
        own = _certificates()
        pair = own.key.encode(), own.certificate.encode()
        port = server.add_secure_port(
            address, grpc.ssl_server_credentials([pair], own.authority.encode(), require_client_auth=True)
        )
    else:
        port = server.add_insecure_port(address)
    server.start()
    ready(address if carrier.local else f"127.0.0.1:{port}")
    threading.Event().wait()


class _Grpc:
    def __init__(self, carrier: Carrier, address: str) -> None:
        if carrier.tls:
            own = _certificates()
            credentials = grpc.ssl_channel_credentials(
                *(text.encode() for text in (own.authority, own.key, own.certificate))
            )
            name = ("grpc.ssl_target_name_override", NAME)
            channel = grpc.secure_channel(address, credentials, options=(*OPTIONS, name))
        else:
            channel = grpc.insecure_channel(address, options=OPTIONS)
        self._get = channel.unary_stream(f"/{SERVICE}/get")
        self._put = channel.stream_unary(f"/{SERVICE}/put")
        self._chunk = carrier.chunk

    def get(self, size: int) -> Bytes:
        return _collected(size, self._get(str(size).encode(), timeout=PATIENCE))

    def put(self, array: Bytes) -> None:
        def messages() -> Iterator[bytes]:
            yield str(len(array)).encode()
            yield from _chunks(array, self._chunk)

        self._put(messages(), timeout=PATIENCE)
