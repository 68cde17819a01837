"""FAISS: an index of approximate nearest neighbours for each type.

The index compares embeddings as the model does. ``dot`` becomes the inner product, ``cos`` the inner product of vectors
of length 1, ``l2`` and ``squared_l2`` the Euclidean distance; FAISS has nothing for a comparator of another package.
With ``bias`` the first dimension is left out, as in ``Model.neighbors``: it is not compared. An id of the index is the
position of a name in ``{type}.json``. FAISS holds the whole index in memory; with ``shard_rows`` the lists of an IVF
index are built in shards and merged on disk, in ``{type}.ivfdata``.

The finished index is queried for the neighbours of a sample of its own vectors. Its recall is the share of them that
are as near as the k nearest, found by comparing all vectors; it is stored in the manifest.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.config.exports import no_metric
from pbg_tasks.errors import ConfigError, QualityGateError
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.names import names_file
from pbg_tasks.publish.exchange.nearest import Form, Recall, pieces, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    from pydantic import JsonValue

    from pbg_tasks.config.exports import FaissOptions
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.names import NamesFile
    from pbg_tasks.publish.exchange.outbox import Outbox


_TRAINING_ROWS = 200_000


def write(contents: Contents, outbox: Outbox, options: FaissOptions) -> dict[str, JsonValue]:
    """Write ``{type}.faiss`` and the names of each type.

    Raises:
        ConfigError: FAISS is not installed, or knows no such index, parameter or comparator.
        QualityGateError: an index finds too few of the nearest vectors.
        FormatError: an embedding is damaged, or a name is no text.
    """
    faiss, form = _library(), Form.of(contents.config, no_metric("faiss", contents.config.comparator))
    measured: dict[str, JsonValue] = {}
    for rows in contents.entities.values():
        files = index_name, names_name = (f"{rows.entity}.faiss", f"{rows.entity}.json")
        index = _build(faiss, rows, form, options)
        lists = f"{rows.entity}.ivfdata" if options.shard_rows else None
        with names_file(outbox.path(names_name)) as names:
            blocks = _prepared(rows, names, form)
            if lists is None:
                for block in blocks:
                    _call(index.add, block)
            else:
                _merge(faiss, index, blocks, outbox.path(lists), options.shard_rows)
        recall = _measure(index, rows, form, options)
        say(f"export faiss: {rows.entity}: recall@{options.neighbors} {recall:.4f} of index {options.index}")
        if recall < options.min_recall:
            raise QualityGateError(
                f"index {options.index!r} of {rows.entity} finds {recall:.4f} of the {options.neighbors} nearest "
                f"vectors, the floor is {options.min_recall}: raise efSearch or nprobe in --parameters, choose another "
                "--index (Flat finds all), or lower --min-recall"
            )
        if lists is not None:
            faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists).filename = lists  # as readers have it
        faiss.write_index(index, str(outbox.path(index_name)))
        outbox.record(rows, *files, *([lists] if lists else []))
        measured[rows.entity] = {
            "metric": "l2" if form.distance else "inner_product",
            "normalized": form.normalized,
            "skipped_dimensions": form.skipped,
            "index": options.index,
            "parameters": options.parameters,
            "neighbors": options.neighbors,
            "queries": min(options.queries, len(rows)),
            "recall": round(recall, 6),
        }
    return {"recall": measured}


def _library() -> ModuleType:
    try:
        import faiss
    except ImportError:
        raise ConfigError("format faiss needs the package faiss-cpu: pip install 'pbg-tasks[faiss]'") from None
    library: ModuleType = faiss
    return library


def _build(faiss: ModuleType, rows: EntityRows, form: Form, options: FaissOptions) -> Any:  # noqa: ANN401 - untyped
    """Return the empty index, trained where it needs to be."""
    metric = faiss.METRIC_L2 if form.distance else faiss.METRIC_INNER_PRODUCT
    index = _call(faiss.index_factory, rows.dimension - form.skipped, options.index, metric)
    if not index.is_trained:
        _call(index.train, sample(rows, _TRAINING_ROWS, form)[1])
    if options.parameters:
        _call(faiss.ParameterSpace().set_index_parameters, index, options.parameters)
    return index


def _prepared(rows: EntityRows, names: NamesFile, form: Form) -> Iterator[np.ndarray]:
    """Yield vectors in the form of the index, and write their names."""
    for block in rows.blocks():
        names.append(block.names)
        yield form.prepared(block.vectors)


def _merge(faiss: ModuleType, index: Any, blocks: Iterable[np.ndarray], lists: Path, limit: int) -> None:  # noqa: ANN401
    """Fill an empty index from shards on disk.

    Args:
        faiss: the library.
        index: empty and trained.
        blocks: vectors in the form of the index.
        lists: file of the merged lists.
        limit: number of rows that a shard has at most, but for those of its last block.

    Raises:
        ConfigError: the index has no lists that could be on disk.
    """
    from faiss.contrib.ondisk import merge_ondisk

    _call(faiss.extract_index_ivf, index)
    if isinstance(index, faiss.IndexIVFPQR):
        raise ConfigError("FAISS merges no index IVFPQR on disk; choose another --index, or leave --shard-rows out")
    with TemporaryDirectory(dir=lists.parent) as folder:
        shards, start = list[str](), 0

        def put() -> None:
            shards.append(f"{folder}/{len(shards)}")
            faiss.write_index(index, shards[-1])
            index.reset()

        for block in blocks:
            _call(index.add_with_ids, block, np.arange(start, start + len(block)))
            start += len(block)
            if index.ntotal >= limit:
                put()
        put()
        with _quiet():
            merge_ondisk(index, shards, str(lists))


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what C code prints to stderr, because stdout has results.

    FAISS prints the size of the merged lists, through C's own buffer.
    """
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _call(function: Any, *arguments: Any) -> Any:  # noqa: ANN401 - untyped
    """Call FAISS, and turn its errors into one of the options.

    FAISS raises them for an index or parameter that it does not know; the message quotes it.
    """
    try:
        return function(*arguments)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"FAISS refuses the index or its parameters ({reason}); correct --index or --parameters"
        ) from None


def _measure(index: Any, rows: EntityRows, form: Form, options: FaissOptions) -> float:  # noqa: ANN401 - untyped
    """Return recall@k over a sample of rows.

    Each is queried for its neighbours, without itself.
    """
    neighbors = min(options.neighbors, len(rows) - 1)
    if neighbors < 1:
        return 1.0  # no row has a neighbour
    numbers_S, queries_SD = sample(rows, options.queries, form)
    _, found_SK = index.search(queries_SD, neighbors + 1)
    recall = Recall(numbers_S, queries_SD, found_SK, neighbors, distance=form.distance)
    for block in pieces(rows, len(numbers_S)):
        recall.compare(form.prepared(block))
    return recall.value()
