"""Receivers of metrics: StatsD and OpenTelemetry."""

from __future__ import annotations

import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Self


class StatsdListener:
    """UDP socket that keeps everything it receives, line by line.

    A thread reads it: the kernel drops what does not fit into the socket's buffer.

    Attributes:
        port: of this machine.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._lines: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while data := self._socket.recv(1 << 16):
            for line in data.decode().splitlines():
                self._lines.put(line)

    def lines(self, count: int) -> list[str]:
        """Return the next lines.

        Raises:
            queue.Empty: fewer came within ten seconds.
        """
        return [self._lines.get(timeout=10) for _ in range(count)]

    def gauges(self, count: int) -> dict[str, float]:
        """Return the values of the next lines, by name."""
        pairs = (line.removesuffix("|g").split(":") for line in self.lines(count))
        return {name: float(value) for name, value in pairs}

    def waiting(self) -> list[str]:
        """Return the lines that have arrived."""
        return self.lines(self._lines.qsize())


class OtlpReceiver:
    """HTTP server that takes OpenTelemetry's metrics.

    Attributes:
        port: of this machine.
        gauges: value and tags of each gauge, by name.
    """

    def __init__(self) -> None:
        self.gauges: dict[str, tuple[float, dict[str, str]]] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
                for point in metric.gauge.data_points:
                    tags = {tag.key: tag.value.string_value for tag in point.attributes}
                    self.gauges[metric.name] = (point.as_double, tags)
