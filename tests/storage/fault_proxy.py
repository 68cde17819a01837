"""An HTTP proxy that spoils chosen answers of a real S3 server.

It does so after the server has done its work, so that the store holds what the client could not learn of.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_THE_CONNECTION = {"connection", "transfer-encoding"}
SDK_ATTEMPTS = 3
"""Number of times the SDK sends a request before the store sees a failure."""


@dataclass
class Fault:
    """Fault in the next ``times`` matching answers.

    An answer matches where its request has this ``method`` and ``text`` in its path.

    Attributes:
        status: answered in place of the server's; None closes the connection without an answer.
        forward: whether the request reaches the server at all.
        truncate: instead, send the true answer with this many bytes of its body only.
        cut: instead, send this many bytes of the true answer only, its head included.
        reset: end the connection by a reset, not by closing it.
        before: called before the request is forwarded.
        seconds: to wait before the request is forwarded.
        edit: makes another answer of the server's.
        again: whether the server gets the request twice, as from a network that repeats; its second answer is lost.
    """

    method: str
    text: str = ""
    times: int = 1
    status: int | None = None
    forward: bool = True
    truncate: int | None = None
    cut: int | None = None
    reset: bool = False
    before: Callable[[], object] = field(default=lambda: None)
    seconds: float = 0.0
    edit: Callable[[bytes], bytes] | None = None
    again: bool = False


class FaultProxy:
    """The proxy.

    Args:
        upstream: URL of the server.
        schedule: chooses the fault of a request by its method and path where ``faults`` names none.

    Attributes:
        faults: still to happen.
        requests: received, as method and path.
        answer: the server's last whole answer, as bytes.
    """

    def __init__(self, upstream: str, schedule: Callable[[str, str], Fault | None] = lambda *_: None) -> None:
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.answer = b""
        self._schedule = schedule
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # without this a body waits 40 ms for its headers to be acknowledged

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def __getattr__(self, name: str) -> Callable[[], None]:
                if name.startswith("do_"):
                    return lambda: proxy.handle(self)
                raise AttributeError(name)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self, start: str) -> int:
        return sum(request.startswith(start) for request in self.requests)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        fault = self._next_fault(request.command, request.path)
        if fault is None:
            _send(request, self._forward(request, body))
            return
        fault.before()
        time.sleep(fault.seconds)
        whole = self._forward(request, body) if fault.forward else b""
        if fault.again:
            self._forward(request, body)
        if fault.edit is not None:
            _send(request, fault.edit(whole))
            return
        if fault.status is not None:
            _send(request, f"HTTP/1.1 {fault.status} Fault\r\nContent-Length: 0\r\n\r\n".encode())
            return
        head = whole.index(b"\r\n\r\n") + 4 if whole else 0
        if fault.truncate is not None:
            _send(request, whole[: head + fault.truncate])
        elif fault.cut is not None:
            _send(request, whole[: fault.cut])
        elif fault.seconds or fault.again:
            _send(request, whole)
            return
        request.close_connection = True
        if fault.reset:
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(request.connection.detach())  # without this the server would end the connection properly first

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> bytes:
        """Send a request to the server and return its raw answer."""
        upstream = HTTPConnection(self._upstream, timeout=30)
        try:
            upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() != "expect":
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
        finally:
            upstream.close()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OF_THE_CONNECTION]
        if answer.getheader("Content-Length") is None:
            headers.append(("Content-Length", str(len(data))))
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in headers), "", ""]
        self.answer = "\r\n".join(lines).encode("iso-8859-1") + data
        return self.answer

    def _next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.times and fault.method == method and fault.text in path:
                    fault.times -= 1
                    return fault
            return self._schedule(method, path)


def _send(request: BaseHTTPRequestHandler, answer: bytes) -> None:
    request.wfile.write(answer)
    request.wfile.flush()
