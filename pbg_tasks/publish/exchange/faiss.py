"""FAISS: an index of approximate nearest neighbours for each type.

The index compares embeddings as the model does. ``dot`` becomes the inner product, ``cos`` the inner product of vectors
of length 1, ``l2`` and ``squared_l2`` the Euclidean distance; FAISS has nothing for a comparator of another package.
With ``bias`` the first dimension is left out, as in ``Model.neighbors``: it is not compared. An id of the index is the
position of a name in ``{type}.json``. FAISS holds the whole index in memory.

The finished index is queried for the neighbours of a sample of its own vectors. Its recall is the share of them that
are as near as the k nearest, found by comparing all vectors; it is stored in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pbg_tasks.config.comparators import facts_of
from pbg_tasks.config.exports import no_faiss
from pbg_tasks.errors import ConfigError, QualityGateError
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange.names import names_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.config.exports import FaissOptions
    from pbg_tasks.publish.exchange.contents import Contents, EntityRows
    from pbg_tasks.publish.exchange.outbox import Outbox


class Recall:
    """Comparison of an index's results with the k nearest vectors.

    The vectors are given block by block. A neighbour that an index found counts when it is as near as the k-th nearest:
    vectors at equal distances are as good as each other.

    Args:
        numbers_S: int64 (S,), row of each query; a query is no neighbour of itself.
        queries_SD: float32 (S, D).
        found_SK: int64 (S, >= k), rows that the index found, nearest first; -1 for none.
        neighbors: k.
        distance: whether near means a small Euclidean distance instead of a large inner product.
    """

    def __init__(
        self, numbers_S: np.ndarray, queries_SD: np.ndarray, found_SK: np.ndarray, neighbors: int, *, distance: bool
    ) -> None:
        self._numbers_S, self._queries_SD, self._distance = numbers_S, queries_SD, distance
        others = found_SK != numbers_S[:, None]
        first = np.argsort(~others, axis=1, kind="stable")[:, :neighbors]  # the first k of the others
        self._found_SK = np.take_along_axis(np.where(others, found_SK, -1), first, axis=1)
        self._found_score_SK = np.full(self._found_SK.shape, -np.inf, np.float32)
        self._best_SK = np.full((len(numbers_S), neighbors), -np.inf, np.float32)
        self._start = 0

    def compare(self, block_ND: np.ndarray) -> None:
        """Compare with the next rows, float32 (N, D)."""
        stop, neighbors = self._start + len(block_ND), self._best_SK.shape[1]
        scores_SN = self._queries_SD @ block_ND.T
        if self._distance:  # the query's own square is the same for all rows, so it is left out
            scores_SN = 2 * scores_SN - np.square(block_ND).sum(axis=1)
        query, place = np.nonzero((self._found_SK >= self._start) & (self._found_SK < stop))
        self._found_score_SK[query, place] = scores_SN[query, self._found_SK[query, place] - self._start]
        own = np.flatnonzero((self._numbers_S >= self._start) & (self._numbers_S < stop))
        scores_SN[own, self._numbers_S[own] - self._start] = -np.inf
        joined = np.concatenate([self._best_SK, scores_SN], axis=1)
        self._best_SK = np.partition(joined, -neighbors, axis=1)[:, -neighbors:]
        self._start = stop

    def value(self) -> float:
        """Return the share of the k nearest that the index found.

        It is taken over all queries.
        """
        worst_S1 = self._best_SK.min(axis=1, keepdims=True)
        return float(((self._found_score_SK >= worst_S1) & (self._found_SK >= 0)).mean())


_TRAINING_ROWS = 200_000
_SHORTEST = 1e-12


def write(contents: Contents, outbox: Outbox, options: FaissOptions) -> dict[str, Any]:
    """Write ``{type}.faiss`` and the names of each type.

    Raises:
        ConfigError: FAISS is not installed, or knows no such index, parameter or comparator.
        QualityGateError: an index finds too few of the nearest vectors.
        FormatError: an embedding is damaged, or a name is no text.
    """
    faiss, form = _library(), _Form.of(contents.config)
    measured = {}
    for rows in contents.entities.values():
        files = index_name, names_name = (f"{rows.entity}.faiss", f"{rows.entity}.json")
        index = _build(faiss, rows, form, options)
        with names_file(outbox.path(names_name)) as names:
            for block in rows.blocks():
                names.append(block.names)
                _call(index.add, form.prepared(block.vectors))
        recall = _measure(index, rows, form, options)
        say(f"export faiss: {rows.entity}: recall@{options.neighbors} {recall:.4f} of index {options.index}")
        if recall < options.min_recall:
            raise QualityGateError(
                f"index {options.index!r} of {rows.entity} finds {recall:.4f} of the {options.neighbors} nearest "
                f"vectors, the floor is {options.min_recall}: raise efSearch or nprobe in --parameters, choose another "
                "--index (Flat finds all), or lower --min-recall"
            )
        faiss.write_index(index, str(outbox.path(index_name)))
        outbox.record(rows, *files)
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


@dataclass(frozen=True, slots=True)
class _Form:
    """Form of vectors in FAISS.

    Attributes:
        distance: whether near means a small Euclidean distance; else, a large inner product.
        normalized: whether vectors have length 1.
        skipped: number of the first dimensions that are left out.
    """

    distance: bool
    normalized: bool
    skipped: int

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """Return the form for a model.

        Raises:
            ConfigError: FAISS cannot compare as the model's comparator does.
        """
        facts = facts_of(config.comparator)
        if facts.metric is None:
            raise ConfigError(no_faiss(config.comparator))
        return cls(facts.metric == "l2", normalized=facts.normalized, skipped=1 if config.bias else 0)

    def prepared(self, block_ND: np.ndarray) -> np.ndarray:
        """Return embeddings, float32 (N, D), in the form of the index.

        The result is contiguous float32 (N, D - skipped).
        """
        kept: np.ndarray = np.ascontiguousarray(block_ND[:, self.skipped :])
        if not self.normalized:
            return kept
        lengths = np.linalg.norm(kept, axis=1, keepdims=True)
        scaled: np.ndarray = kept / np.maximum(lengths, _SHORTEST)
        return scaled


def _library() -> ModuleType:
    try:
        import faiss
    except ImportError:
        raise ConfigError("format faiss needs the package faiss-cpu: pip install 'pbg-tasks[faiss]'") from None
    library: ModuleType = faiss
    return library


def _build(faiss: ModuleType, rows: EntityRows, form: _Form, options: FaissOptions) -> Any:  # noqa: ANN401 - untyped
    """Return the empty index, trained where it needs to be."""
    metric = faiss.METRIC_L2 if form.distance else faiss.METRIC_INNER_PRODUCT
    index = _call(faiss.index_factory, rows.dimension - form.skipped, options.index, metric)
    if not index.is_trained:
        _call(index.train, _sample(rows, _TRAINING_ROWS, form)[1])
    if options.parameters:
        _call(faiss.ParameterSpace().set_index_parameters, index, options.parameters)
    return index


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


def _sample(rows: EntityRows, count: int, form: _Form) -> tuple[np.ndarray, np.ndarray]:
    """Return a sample of at most ``count`` rows, regularly spaced.

    Returns:
        Numbers, int64 (S,), and prepared vectors, float32 (S, D).
    """
    total = len(rows)
    numbers = np.linspace(0, total - 1, min(count, total)).round().astype(np.int64)
    chosen, start = [], 0
    for block in rows.vectors():
        inside = numbers[(numbers >= start) & (numbers < start + len(block))]
        chosen.append(block[inside - start])
        start += len(block)
    vectors = np.concatenate(chosen) if chosen else np.empty((0, rows.dimension), np.float32)
    return numbers, form.prepared(vectors)


def _measure(index: Any, rows: EntityRows, form: _Form, options: FaissOptions) -> float:  # noqa: ANN401 - untyped
    """Return recall@k over a sample of rows.

    Each is queried for its neighbours, without itself.
    """
    neighbors = min(options.neighbors, len(rows) - 1)
    if neighbors < 1:
        return 1.0  # no row has a neighbour
    numbers_S, queries_SD = _sample(rows, options.queries, form)
    _, found_SK = index.search(queries_SD, neighbors + 1)
    recall = Recall(numbers_S, queries_SD, found_SK, neighbors, distance=form.distance)
    for block in _pieces(rows, len(numbers_S)):
        recall.compare(form.prepared(block))
    return recall.value()


def _pieces(rows: EntityRows, queries: int) -> Iterator[np.ndarray]:
    """Yield all vectors in blocks.

    Their scores with all queries take at most 64 MiB.
    """
    step = max(1, (1 << 24) // queries)
    for block in rows.vectors():
        for start in range(0, len(block), step):
            yield block[start : start + step]
