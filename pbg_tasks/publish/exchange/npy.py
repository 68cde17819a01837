"""Arrays of numpy: ``{type}.npy`` with ``{type}.json``, the names.

An array is float32 (N, D), which ``np.load(..., mmap_mode="r")`` maps. The folder can be used as an ``init_path``.
Parameters of the relations go to ``_relations/``. Arrays of other programs may have any float type, and their names may
be a JSON list, a text of one name a line, or an array of integers or strings.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain, islice
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError, InputError
from pbg_tasks.formats.npy import map_array
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.arrays import named_array
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.names import json_names
from pbg_tasks.publish.exchange.parts import Part, named_items
from pbg_tasks.publish.exchange.relations import FOLDER, parameter_key, write_relations
from pbg_tasks.publish.exchange.vectors import Vectors
from pbg_tasks.storage.staging import named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config.exports import OptionsOfAll
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.inbox import Inbox
    from pbg_tasks.publish.exchange.outbox import Outbox
    from pbg_tasks.publish.exchange.vectors import ReadOptions

NAMES = ("{stem}.json", "ids.json", "ids.txt", "ids.npy")
"""Files that may hold the names of ``{stem}.npy``; the first one that exists counts."""

_BLOCK_VALUES = 1 << 20
_MATRIX = 2


def write(contents: Contents, outbox: Outbox, options: OptionsOfAll) -> dict[str, JsonValue]:
    """Write an array and names for each type, and the parameters.

    Each parameter of the relations is an array.

    Raises:
        FormatError: an embedding is damaged, or a name is no text.
    """
    for rows in contents.entities.values():
        outbox.record(rows, *write_rows(contents, rows, outbox, rows.entity, options))
    return write_shared(contents, outbox, options)


def write_rows(
    contents: Contents,  # noqa: ARG001 - for formats that need it
    rows: EntityRows,
    outbox: Outbox,
    stem: str,
    options: OptionsOfAll,  # noqa: ARG001 - no option
) -> tuple[str, ...]:
    """Write rows to ``{stem}.npy`` and ``{stem}.json``; return these names."""
    files = array_path, names_path = (f"{stem}.npy", f"{stem}.json")
    with named_array(outbox.path(array_path), outbox.path(names_path), rows.dimension) as array:
        for block in rows.blocks():
            array.append(block)
    return files


def write_shared(contents: Contents, outbox: Outbox, options: OptionsOfAll) -> dict[str, JsonValue]:  # noqa: ARG001 - no option
    """Write the parameters and the index of the relations."""
    for path, value in contents.params.items():
        np.save(outbox.path(f"{FOLDER}/{parameter_key(path)}.npy"), value.astype("<f4"), allow_pickle=False)
    write_relations(contents, outbox)
    return {}


def read(inbox: Inbox, options: ReadOptions) -> Iterator[Vectors]:
    """Yield the vectors of each ``.npy`` file that has names.

    Raises:
        FormatError: an array is damaged or of another shape, or has other names than rows.
    """
    for entity, files in _arrays(inbox, options.entity).items():
        head, *others = files
        with _opened(inbox, head) as first:
            source, rest = inbox.url if others else inbox.source(head), _rest(inbox, others, first.dimension)
            yield Vectors(entity, first.dimension, source, chain(first.blocks, rest), None if others else first.total)


@contextmanager
def _opened(inbox: Inbox, file: str) -> Iterator[Part]:
    """Open an array and the names beside it."""
    wanted = [str(PurePath(file).parent / pattern.format(stem=PurePath(file).stem)) for pattern in NAMES]
    beside = next(filter(inbox.has, wanted), None)
    if beside is None:
        raise FormatError(f"{inbox.source(file)}: no names beside it; put one of {', '.join(wanted)} there")
    with inbox.local(file) as path, inbox.local(beside) as names_path:
        with named(path, inbox.source(file)):
            vectors = _mapped(path)
        names = named_items(_names(names_path), names_path, inbox.source(beside))
        blocks = _named_rows(vectors, names, inbox.source(file), inbox.source(beside))
        yield Part(vectors.shape[1], len(vectors), blocks)


def _rest(inbox: Inbox, files: list[str], dimension: int) -> Iterator[Block]:
    for file in files:
        with _opened(inbox, file) as part:
            if part.dimension != dimension:
                raise FormatError(
                    f"{inbox.source(file)}: has dimension {part.dimension}, the files before it have {dimension}"
                )
            yield from part.blocks


def _arrays(inbox: Inbox, entity: str | None) -> dict[str, list[str]]:
    """Return the arrays of each type.

    They are those of the manifest's parts, the one of the same name, or the only one there is.
    """
    if entity is None and inbox.manifest is None and not inbox.single:
        stems = {name.removesuffix(".npy") for name in inbox.names if name.endswith(".npy") and "/" not in name}
        paired = [stem for stem in sorted(stems) if f"{stem}.json" in inbox.names and stem != "ids"]
        if paired:
            for stem in sorted(stems.difference(paired, {"ids"})):
                say(f"warning: {inbox.url}: {stem}.npy is left out, as there is no {stem}.json of its names beside it")
            return {stem: [f"{stem}.npy"] for stem in paired}
    arrays = {}
    for name, files in inbox.typed((".npy",), entity).items():
        found = [file for file in files if file != "ids.npy"]
        if len(found) > 1 and f"{name}.npy" in found:
            found = [f"{name}.npy"]
        if inbox.manifest is not None:
            found = [file for file in files if file in inbox.manifest.objects]
        elif len(found) != 1:
            raise InputError(f"{inbox.url}: holds {len(found)} arrays for type {name!r}; name the file itself")
        arrays[name] = found
    return arrays


def _mapped(path: Path) -> np.ndarray:
    array = map_array(path, str(path))
    if array.ndim != _MATRIX or array.dtype.kind != "f" or not array.shape[1]:
        raise FormatError(
            f"{path}: holds {array.dtype} of shape {array.shape}; floats of shape (rows, dimension) are needed"
        )
    return array


def _named_rows(vectors: np.ndarray, names: Iterator[str], source: str, beside: str) -> Iterator[Block]:
    """Yield the rows of an array with their names.

    Raises:
        FormatError: there are more names than rows, or fewer.
    """
    step = max(1, _BLOCK_VALUES // vectors.shape[1])
    for start in range(0, len(vectors), step):
        rows = vectors[start : start + step]
        listed = list(islice(names, len(rows)))
        if len(listed) < len(rows):
            raise FormatError(f"{source}: has {len(vectors)} rows, {beside} has {start + len(listed)} names")
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, which is refused later
            yield Block(listed, np.array(rows, np.float32))
    if more := sum(1 for _ in names):
        raise FormatError(f"{source}: has {len(vectors)} rows, {beside} has {len(vectors) + more} names")


def _names(path: Path) -> Iterator[str]:
    """Yield the names of all rows.

    Raises:
        FormatError: they are no list of names.
    """
    if path.suffix == ".npy":
        return _array_names(path)
    return _text_names(path) if path.suffix == ".txt" else json_names(path)


def _text_names(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:  # as readers of tables do
            for line in file:
                yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 (byte {error.start})") from None


def _array_names(path: Path) -> Iterator[str]:
    """Yield names from an array of integers or of strings.

    The name of an integer is its decimal text.
    """
    array = map_array(path, str(path))
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise FormatError(
            f"{path}: holds {array.dtype} of shape {array.shape}; whole numbers or strings, one a row, are needed"
        )
    return map(str, array)
