"""Server of Spark Connect, a process apart."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import time
from pathlib import Path

import pytest

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SECONDS = 300
"""Limit of the start of a server."""


@contextlib.contextmanager
def connect_server(settings, log):
    """Run Spark's server, which takes a token; ``SPARK_REMOTE`` names it.

    Its executors have the environment of this process.

    Yields:
        its address, as ``SPARK_REMOTE`` is, and its token.
    """
    import pyspark

    port = free_port()
    own = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", _CLASS]
    for key, value in (settings | own).items():
        submit += ["--conf", f"{key}={value}"]
    with pytest.MonkeyPatch.context() as patch, log.open("w") as output:
        token = secrets.token_hex(16)
        patch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", token)
        with subprocess.Popen(submit, stdout=output, stderr=subprocess.STDOUT) as server:
            try:
                wait_for(server, port, log)
                address = f"sc://localhost:{port}"
                patch.setenv("SPARK_REMOTE", address)
                yield address, token
            finally:
                server.terminate()


def free_port():
    """Return a port where nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(server, port, log):
    """Wait until a server's process takes connections.

    Raises:
        RuntimeError: it does not start; the message has the end of its log.
    """
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
