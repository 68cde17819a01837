"""Registry of the writers and readers of exchange formats.

They are built in, or of installed packages.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from pbg_tasks.config.base import Options, parse
from pbg_tasks.config.exports import is_sink, no_parts
from pbg_tasks.config.registry import EXPORTS, IMPORTS, JOINED, SINKS
from pbg_tasks.errors import ConfigError
from pbg_tasks.plugins import AT_WORK, PluginError
from pbg_tasks.publish.exchange.contents import Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from pbg_tasks.config.exports import ExportOptions
    from pbg_tasks.plugins import Kind
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


class Format:
    """Base of the exchange formats of other packages.

    A format overrides ``write``, ``read`` or both.

    Attributes:
        write_options: declares the keys of ``options`` in an export.
        read_options: declares those of an import.
    """

    write_options: ClassVar[type[Options]] = Options
    read_options: ClassVar[type[Options]] = Options

    def write(self, contents: Contents, outbox: Outbox, options: Any) -> dict[str, JsonValue]:  # noqa: ANN401 - of write_options
        """Write the files of an export into ``outbox``.

        Args:
            contents: embeddings with names, and parameters of the relations.
            outbox: ``path(name)`` gives the place of a file, ``record(rows, *names)`` records the type in it.
            options: of the class ``write_options``.

        Returns:
            Figures for the manifest, plain JSON values.

        Raises:
            FormatError: a name cannot be written, or an embedding is damaged.
        """
        raise NotImplementedError

    def read(self, inbox: Inbox, entity: str | None, options: Any) -> Iterator[Vectors]:  # noqa: ANN401 - of read_options
        """Yield the vectors of each entity type.

        One is read to its end before the next is requested.

        Args:
            inbox: ``typed(suffixes, entity)`` gives the files of each type, ``local(name)`` a file's path.
            entity: type of all vectors; None where the source itself has the types.
            options: of the class ``read_options``.

        Raises:
            FormatError: a file is damaged or of another format.
        """
        raise NotImplementedError


class Writer(Protocol):
    """Writer of an export."""

    def __call__(self, contents: Contents, outbox: Outbox) -> dict[str, JsonValue]:
        """Write files into ``outbox``; return figures for the manifest.

        Raises:
            FormatError: a name cannot be written, or an embedding is damaged.
        """
        ...


class PartWriter(Protocol):
    """Writer of one part of an export."""

    def __call__(self, contents: Contents, outbox: Outbox, *, first: bool) -> dict[str, JsonValue]:
        """Write files of some partitions; return figures for the manifest.

        Args:
            contents: with these partitions.
            outbox: gets a file or more for each.
            first: whether it is the first part, which also writes what is not of a partition.

        Raises:
            FormatError: a name cannot be written, or an embedding is damaged.
        """
        ...


class Reader(Protocol):
    """Reader of vectors with names."""

    def __call__(self, inbox: Inbox) -> Iterator[Vectors]:
        """Yield the vectors of each entity type.

        One is read to its end before the next is requested.

        Raises:
            FormatError: the source is damaged or of another format.
        """
        ...


def writer(name: str, options: ExportOptions) -> Writer:
    """Return the writer of a format with its options.

    Raises:
        ConfigError: there is none, it has no such option, or the package that adds it is at fault.
    """
    _check(name, EXPORTS)
    if foreign := options.foreign_to(name):
        raise ConfigError(f"format {name} has no option {foreign[0]!r}")
    if name in WRITERS:
        return partial(_find(WRITERS[name]), options=options)
    form = _installed(name, EXPORTS, "write")
    own = parse(form.write_options, options.options, source=f"options of format {name}")

    def write(contents: Contents, outbox: Outbox) -> dict[str, JsonValue]:
        with EXPORTS.blamed(name, passing=AT_WORK):
            measured = form.write(contents, outbox, own)
            if not isinstance(measured, dict):
                raise PluginError(f"is wrong: write returns {type(measured).__name__}, not a dict of figures")
            return measured

    return write


def part_writer(name: str, options: ExportOptions) -> PartWriter:
    """Return the writer of parts of a format, with its options.

    Raises:
        ConfigError: there is none, it has no such option, or it is written whole only.
    """
    if not is_sink(name):
        writer(name, options)
    if (reason := no_parts(name, options)) is not None:
        raise ConfigError(reason)
    module = import_module(f"{_HERE}.{name}")
    if name in JOINED:
        return partial(module.write_part, options=options)

    def write(contents: Contents, outbox: Outbox, *, first: bool) -> dict[str, JsonValue]:
        for entity, rows in contents.entities.items():
            files = list[str]()
            for number, part in rows.apart():
                files += module.write_rows(contents, part, outbox, f"{entity}/part-{number:05d}", options)
            outbox.record(rows, *files)
        found: dict[str, JsonValue] = module.write_shared(contents, outbox, options) if first else {}
        return found

    return write


def join_pieces(name: str, pieces: Sequence[bytes], source: str) -> bytes:
    """Return the file of which the parts of an export have pieces.

    Args:
        name: of the format.
        pieces: in the order of the parts.
        source: name of the file, for messages.
    """
    joined: bytes = import_module(f"{_HERE}.{name}").join(pieces, source)
    return joined


def reader(name: str, options: ReadOptions) -> Reader:
    """Return the reader of a format with its options.

    Raises:
        ConfigError: there is none, it has no such option, or the package that adds it is at fault.
    """
    _check(name, IMPORTS)
    if foreign := options.foreign_to(name):
        raise ConfigError(f"format {name} has no option {foreign[0]!r}")
    if name in READERS:
        if options.options:
            raise ConfigError(f"format {name} has no option {next(iter(options.options))!r}")
        return partial(_find(READERS[name]), options=options)
    form = _installed(name, IMPORTS, "read")
    own = parse(form.read_options, options.options, source=f"options of format {name}")

    def read(inbox: Inbox) -> Iterator[Vectors]:
        with IMPORTS.blamed(name, passing=AT_WORK):
            for vectors in form.read(inbox, options.entity, own):
                yield replace(vectors, blocks=_blamed(name, vectors))

    return read


def _blamed(name: str, vectors: Vectors) -> Iterator[Block]:
    with IMPORTS.blamed(name, passing=AT_WORK):
        for block in vectors.blocks:
            names, rows = list(block.names), np.asarray(block.vectors)
            wanted = (len(names), vectors.dimension)
            if rows.shape != wanted or rows.dtype.kind != "f" or not all(isinstance(each, str) for each in names):
                raise PluginError(
                    f"is wrong: read yields {len(names)} names with {rows.dtype} of shape {rows.shape}; texts and "
                    f"float32 of shape {wanted} are needed"
                )
            with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, which is refused later
                yield Block(names, rows.astype(np.float32, copy=False))


def _check(name: str, kind: Kind) -> None:
    if name not in kind.names():
        sinks = f"; sinks are {', '.join(SINKS.names())} (group {SINKS.group!r})" if kind is EXPORTS else ""
        raise ConfigError(
            f"no {kind.noun} is named {name!r}; there are {', '.join(kind.names())}, and those of packages with an "
            f"entry point of the group {kind.group!r}{sinks}"
        )


def _find(target: str) -> Any:  # noqa: ANN401 - a function of a module of this room
    module, _, function = target.partition(":")
    return getattr(import_module(f"{_HERE}.{module}"), function)


def _installed(name: str, kind: Kind, method: str) -> Format:
    form = kind.load(name, Format)
    if getattr(type(form), method) is getattr(Format, method):
        raise ConfigError(f"{kind.noun} {name!r} does not {method}: its class {type(form).__name__} has no {method!r}")
    return form
