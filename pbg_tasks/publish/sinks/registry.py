"""Sinks by name: built in, or of installed packages."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.base import parse
from pbg_tasks.config.registry import SINKS
from pbg_tasks.config.sinks import refuse_delta
from pbg_tasks.errors import AccessError, ConfigError, PbgError, StorageError
from pbg_tasks.plugins import AT_WORK
from pbg_tasks.publish.sinks.base import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from pbg_tasks.config.sinks import SinkOptions
    from pbg_tasks.publish.sinks.base import Tables

_BUILT_IN = {
    "lancedb": "lance:LanceSink",
    "milvus": "milvus:MilvusSink",
    "pgvector": "postgres:PostgresSink",
    "qdrant": "qdrant:QdrantSink",
}


def find_sink(name: str) -> Sink:
    """Return a sink by its name.

    Raises:
        ConfigError: there is none, or its package is at fault.
    """
    if name not in _BUILT_IN:
        return SINKS.load(name, Sink)
    module, _, kind = _BUILT_IN[name].partition(":")
    sink: Sink = getattr(import_module(f"{__package__}.{module}"), kind)()
    return sink


def sink_options(name: str, options: Mapping[str, Any]) -> SinkOptions:
    """Return the options of a sink.

    Raises:
        ConfigError: the sink has no such option.
    """
    try:
        refuse_delta(name, options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return parse(find_sink(name).sink_options, options, source=f"options of sink {name}")


@contextmanager
def open_sink(name: str, destination: str, options: SinkOptions) -> Iterator[Tables]:
    """Open a connection to a store.

    Errors of a package's sink are reported with its entry point.

    Raises:
        ConfigError: the URL is of another kind, a library is missing, or a package is at fault.
        StorageError: the store cannot be reached.
    """
    sink = find_sink(name)
    if name in _BUILT_IN:
        with sink.connect(destination, options) as tables:
            yield tables
        return
    with SINKS.blamed(name, passing=AT_WORK), sink.connect(destination, options) as tables:
        yield tables


def library(module: str, *, sink: str, extra: str) -> ModuleType:
    """Import a store's client library.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{sink} needs the package {module} ({error}): pip install 'pbg-tasks[{extra}]'") from None


@contextmanager
def client_errors(
    store: str, destination: str, secret: str, is_refusal: Callable[[Exception], object]
) -> Iterator[None]:
    """Turn errors of a store's client into errors of this package.

    Args:
        store: its name, for messages.
        destination: its URL, for messages.
        secret: variable with the key or token.
        is_refusal: whether an error is the answer to a wrong one.

    Raises:
        AccessError: the key may not do it.
        StorageError: the store failed, or cannot be reached.
    """
    try:
        yield
    except (PbgError, MemoryError):
        raise
    except Exception as error:  # the client's own classes and those of its HTTP library, which are there only with it
        if is_refusal(error):
            raise AccessError(f"{destination}: refused ({error}); check {secret}") from error
        raise StorageError(
            f"{destination}: {store} failed ({error}); run the export again, it goes on where it ended"
        ) from error
