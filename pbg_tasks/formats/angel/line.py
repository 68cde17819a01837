"""Text embeddings of Angel's LINE, word2vec and EGES.

Each line has a node and its vector; there is no metadata. A training writes
``<output>/CP_<epoch>/embedding/<partition>``; with context embeddings, ``inputEmbedding`` and ``contextEmbedding`` come
before ``embedding``. The same lines warm-start LINE and word2vec (``extraInputEmbeddingPath``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.angel.commit import replacing_directory
from pbg_tasks.formats.angel.records import Span
from pbg_tasks.formats.angel.text import check_separator, check_uncompressed, format_lines, line_blocks, parse_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pbg_tasks.formats.angel.folder import Folder
    from pbg_tasks.storage.base import Store

SEPARATORS = {"colon": ":", "space": " ", "comma": ",", "tab": "\t", "bar": "\\|"}
"""Characters for the words of ``angel.line.keyvalue.sep`` and ``angel.line.feature.sep``; ``bar`` repeats a mistake of
Angel.
"""

NODES_PER_FILE = 1_000_000

_EMBEDDING = re.compile(r"CP_([0-9]{1,9})/(?:inputEmbedding/)?embedding/(?:[0-9]+|part-[^/]*)")
_SAMPLE_BYTES = 1 << 20


def read_line(
    folder: Folder, *, key_separator: str = "colon", feature_separator: str = "space"
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield nodes int64 (n,) and their vectors float32 (n, D).

    They come in the order of the files.

    Args:
        folder: its files are named by partition numbers, or ``part-*`` as Spark names them.
        key_separator: after the node: a word of ``SEPARATORS`` or the characters themselves.
        feature_separator: between numbers: the same.

    Raises:
        FormatError: no such files, one is compressed, or a line is not a node with as many numbers as the first line
            has.
    """
    sizes = folder.sizes()
    names = sorted((name for name in sizes if _is_data(name)), key=lambda name: (len(name), name))
    if not names:
        raise FormatError(f"{folder.where}: no files named by a number or part-*, so no embeddings of Angel's LINE")
    check_uncompressed(names, folder.where)
    dimension, separators = 0, ("", "")
    for name in names:
        span = Span(folder.local(name), 0, sizes[name], f"{folder.where}/{name}")
        if not dimension and span.length:
            separators = _separators(span, key_separator, feature_separator)
            dimension = _dimension(span, *separators)
        for nodes, *columns in parse_lines(
            span, [np.dtype(np.int64), *[np.dtype(np.float32)] * dimension], separators[1], separators[0]
        ):
            yield nodes, np.stack(columns, axis=1)


def write_line(
    folder: Path,
    blocks: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    key_separator: str = "colon",
    feature_separator: str = "space",
    nodes_per_file: int = NODES_PER_FILE,
    replace: bool = False,
) -> int:
    """Write nodes and their vectors into a folder; return their number.

    The folder appears only when it is whole.

    Args:
        folder: by Angel's convention ``CP_<epoch>/embedding``.
        blocks: nodes (n,), each one more than the one before, and float32 vectors (n, D).
        key_separator: after the node: a word of ``SEPARATORS`` or the characters themselves.
        feature_separator: between numbers: the same.
        nodes_per_file: number of nodes in a partition.
        replace: whether the folder may be there.

    Raises:
        ConfigError: Angel cannot read such separators.
        FormatError: nodes leave a gap or exceed an int; or vectors are not float32 of one dimension.
        ConflictError: the folder is there.
        ResourceError: the disk is full.
    """
    if "bar" in {key_separator, feature_separator}:
        raise ConfigError("separator bar: Angel writes it as \\| and cannot read that again; use another one")
    after, between = SEPARATORS.get(key_separator, key_separator), SEPARATORS.get(feature_separator, feature_separator)
    for separator in (after, between):
        check_separator(separator)
    count = 0
    with replacing_directory(folder, replace=replace) as partial:
        for nodes, vectors in _consecutive(blocks):
            for start, stop in _pieces(count, len(nodes), nodes_per_file):
                with (partial / str((count + start) // nodes_per_file)).open("ab") as file:
                    file.write(format_lines([nodes[start:stop]], vectors[start:stop], after, between))
            count += len(nodes)
    return count


def latest_line(store: Store, output: str = "") -> str:
    """Return the prefix of the last epoch's embeddings below an output.

    Args:
        store: of the output of LINE or word2vec.
        output: its prefix, without a slash at the end.

    Raises:
        FormatError: there are none.
    """
    start = f"{output}/" if output else ""
    found = [match for info in store.list(start) if (match := _EMBEDDING.fullmatch(info.key.removeprefix(start)))]
    if not found:
        raise FormatError(f"{store.url}/{start}: no CP_<epoch>/embedding or CP_<epoch>/inputEmbedding/embedding")
    last = max(found, key=lambda match: int(match[1]))
    return start + last[0].rpartition("/")[0]


def _is_data(name: str) -> bool:
    return name.isdigit() or name.startswith("part-")


def _first_line(span: Span) -> str:
    sample = Span(span.path, span.offset, min(span.length, _SAMPLE_BYTES), span.where)
    return next(line_blocks(sample)).split(b"\n", 1)[0].rstrip(b"\r").decode("latin-1")


def _separators(span: Span, after: str, between: str) -> tuple[str, str]:
    """Return the separators for two words or texts.

    For the word ``bar``, Angel writes other characters than a bar; both are accepted.
    """
    bar = SEPARATORS["bar"] if SEPARATORS["bar"] in _first_line(span) else "|"
    known = {**SEPARATORS, "bar": bar}
    return known.get(after, after), known.get(between, between)


def _dimension(span: Span, after: str, between: str) -> int:
    node, parted, numbers = _first_line(span).partition(after)
    if not parted or not node.strip().lstrip("+-").isdigit():
        raise FormatError(
            f"{span.where}, line 1: expected a node, {after!r} and numbers parted by {between!r}, found {node[:60]!r}"
        )
    return numbers.count(between) + 1


def _pieces(done: int, count: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut a block at the ends of files."""
    start = 0
    while start < count:
        stop = min(count, start + most - (done + start) % most)
        yield start, stop
        start = stop


def _consecutive(blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    before, dimension = None, None
    limit = np.iinfo(np.int32).max
    for nodes, vectors in blocks:
        shape = vectors.shape[1:]
        if len(shape) != 1 or 0 in shape or vectors.dtype != np.float32 or dimension not in {None, *shape}:
            raise FormatError(
                f"vectors of {vectors.dtype} and shape {vectors.shape}: expected float32 of one dimension"
            )
        if not len(nodes):
            continue
        first = nodes[0] if before is None else before + 1
        if (nodes != np.arange(first, first + len(nodes))).any() or nodes[-1] > limit:
            raise FormatError(f"nodes {nodes[0]} to {nodes[-1]}: Angel's are consecutive and at most {limit}")
        before, dimension = int(nodes[-1]), vectors.shape[1]
        yield nodes, vectors
