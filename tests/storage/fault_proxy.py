"""An HTTP proxy before a real S3 server that spoils chosen answers after the server has done its work."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SDK_ATTEMPTS = 3
"""How often the SDK sends a request before we hear of a failure."""


@dataclass
class Fault:
    """Spoil the next ``times`` answers to requests of ``method`` whose path holds ``text``.

    Attributes:
        status: answer this instead of what the server said; None closes the connection without a word.
        forward: whether the server gets the request at all.
        truncate: instead, send the true answer but only this much of its body.
        before: called before the request is forwarded.
    """

    method: str
    text: str = ""
    times: int = 1
    status: int | None = None
    forward: bool = True
    truncate: int | None = None
    before: Callable[[], object] = field(default=lambda: None)


class FaultProxy:
    def __init__(self, upstream: str) -> None:
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms for its headers to be acknowledged

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self, start: str) -> int:
        return sum(request.startswith(start) for request in self.requests)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        fault = self._next_fault(request.command, request.path)
        if fault:
            fault.before()
        if fault and not fault.forward:
            self._answer(request, fault.status, {}, b"")
            return
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
        if fault and fault.truncate is not None:
            self._answer(request, answer.status, dict(answer.getheaders()), data[: fault.truncate])
            request.close_connection = True
        elif fault:
            self._answer(request, fault.status, {}, b"")
        else:
            self._answer(request, answer.status, dict(answer.getheaders()), data)

    def _next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.times and fault.method == method and fault.text in path:
                    fault.times -= 1
                    return fault
        return None

    @staticmethod
    def _answer(request: BaseHTTPRequestHandler, status: int | None, headers: dict[str, str], body: bytes) -> None:
        if status is None:
            request.close_connection = True
            return
        request.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                request.send_header(name, value)
        if "Content-Length" not in headers:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
