"""Connections between the ranks of one test, over real sockets."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pbg_tasks.training.ranks.transport.wire import Connection

_TOKEN = bytes(range(32))


def credentials(rank: int) -> Credentials:
    """Return the credentials of a trainer of the test's run."""
    return Credentials(_TOKEN, "the spec's hash", rank, "trainer")


def echo(connection: Connection) -> None:
    """Answer every message with itself."""
    while True:
        message = connection.receive(timeout=None)
        connection.send(message.kind, *message.arrays, **message.fields)


@contextmanager
def linked(service: Callable[[Connection], None], *ranks: int, server: int = 9) -> Iterator[list[Connection]]:
    """Serve from rank ``server``, and give one connection of each other rank."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(credentials(server), {"test": service}, host="127.0.0.1"))
        yield [stack.enter_context(connect(listener.address, credentials(rank), "test", timeout=10)) for rank in ranks]
