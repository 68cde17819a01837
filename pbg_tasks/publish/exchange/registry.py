"""Which module writes or reads which format."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config.exports import ExportOptions
    from pbg_tasks.publish.exchange.contents import Contents
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

_HERE = "pbg_tasks.publish.exchange"
WRITERS = {
    "angel": "angel:write",
    "angel-line": "angel_line:write",
    "parquet": "parquet:write",
    "npy": "npy:write",
    "word2vec": "word2vec:write",
    "word2vec-bin": "word2vec:write_binary",
    "safetensors": "safetensors:write",
    "faiss": "faiss:write",
    "projector": "projector:write",
    "tsv": "tsv:write",
}
READERS = {
    "angel": "angel:read",
    "angel-line": "angel_line:read",
    "parquet": "parquet:read",
    "npy": "npy:read",
    "word2vec": "word2vec:read",
    "tsv": "tsv:read",
    "wikidata-pbg": "wikidata:read",
}


class Writer(Protocol):
    """Writes an export."""

    def __call__(self, contents: Contents, outbox: Outbox, options: ExportOptions) -> dict[str, Any]:
        """Leave the files of an export in ``outbox``; return what the manifest should say of it beyond the usual.

        Raises:
            FormatError: a name cannot be written, or an embedding is damaged.
        """
        ...


class Reader(Protocol):
    """Reads vectors with names."""

    def __call__(self, inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
        """Yield the vectors of each entity type; one is read to its end before the next is asked for.

        Raises:
            FormatError: what is there is damaged or of another format.
        """
        ...


def writer(name: str) -> Writer:
    """Return the writer of a format.

    Raises:
        ConfigError: there is none.
    """
    found: Writer = _find(name, WRITERS)
    return found


def reader(name: str) -> Reader:
    """Return the reader of a format.

    Raises:
        ConfigError: there is none.
    """
    found: Reader = _find(name, READERS)
    return found


def _find(name: str, known: dict[str, str]) -> Any:  # noqa: ANN401 - a Writer or a Reader
    if name not in known:
        raise ConfigError(f"no exchange format is named {name!r}; there are {', '.join(known)}")
    module, _, function = known[name].partition(":")
    return getattr(import_module(f"{_HERE}.{module}"), function)
