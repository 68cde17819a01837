"""Look-up of neighbours with numpy alone.

It is for a web server, which must not load torch for it. The results are those of ``Model.neighbors``, for a release on
the local disk.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from contextlib import ExitStack
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pbg_tasks.config.comparators import facts_of
from pbg_tasks.errors import InputError, ResourceError
from pbg_tasks.formats.directory import read_config
from pbg_tasks.formats.embeddings import embeddings_file_name, map_embeddings
from pbg_tasks.formats.entities import entity_names_file_name, read_entity_names
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.progress import human_count
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema

BLOCK_ROWS = 1 << 15
CONFIG = "config.json"
_TINY = 1e-30


class Neighbour(NamedTuple):
    """Entity and its score; higher is more alike."""

    name: str
    score: float


class Neighbourhood:
    """Entities of one type of a release, mapped from a private copy.

    The copy is removed with this object; that of a killed process, with the next ``Scratch``.

    Args:
        files: of the release.
        entity_type: of the entities; None for the only type, or the first one.
        limit: bytes of files beyond which nothing is downloaded.

    Raises:
        InputError: there is no such type.
        ResourceError: the files are larger than the limit.
        FormatError: a file is damaged.
    """

    def __init__(self, files: VerifiedFiles, entity_type: str | None = None, *, limit: int) -> None:
        resources = ExitStack()
        here = resources.enter_context(Scratch()).path
        weakref.finalize(self, resources.close)
        self.config = read_config(files.fetch(CONFIG, here).read_bytes(), source=f"{files.url}/{CONFIG}")
        self.entity_type = self._chosen(entity_type)
        partitions = range(self.config.entities[self.entity_type].num_partitions)
        embeddings = [embeddings_file_name(self.entity_type, part, files.version) for part in partitions]
        names = [entity_names_file_name(self.entity_type, part) for part in partitions]
        others = [name for name in (model_file_name(files.version), EXPIRED) if name in files.names]
        wanted = [*embeddings, *names, *others]
        if (size := sum(files.records[name].size for name in wanted)) > limit:
            raise ResourceError(
                f"type {self.entity_type!r} has {human_count(size)}B of files, look-ups take {human_count(limit)}B at "
                "most: ask `pbg_tasks.Model`, or raise [pbg] lookup_bytes"
            )
        files.fetch_all(wanted, here)
        dimension = self.config.entity_dimension(self.entity_type)
        self._vectors = [map_embeddings(here / name, dimension=dimension) for name in embeddings]
        self._names = [
            read_entity_names(here, self.entity_type, part, count=len(self._vectors[part])) for part in partitions
        ]
        self._bases = np.cumsum([0, *map(len, self._vectors)])
        self._hidden = _hidden(here, self.entity_type, self._bases) if EXPIRED in others else np.empty(0, np.int64)
        self._shift = _global(here / model_file_name(files.version), self.config, self.entity_type)

    def _chosen(self, entity_type: str | None) -> str:
        types = list(self.config.entities)
        if entity_type is not None and entity_type not in types:
            raise InputError(f"no entity type is named {entity_type!r}; the model has {', '.join(map(repr, types))}")
        if facts_of(self.config.comparator).metric is None:
            raise InputError(f"comparator {self.config.comparator!r} is not built in: ask `pbg_tasks.Model`")
        return entity_type or types[0]

    def nearest(self, name: str, count: int) -> list[Neighbour]:
        """Return the entities most like one, best first, without itself.

        Equal scores are sorted by number.

        Raises:
            InputError: there is no such entity.
        """
        number = self._number(name)
        query_D = self._prepared(self._row(number)[None])[0]
        scores_N = np.concatenate([self._scores(query_D, vectors) for vectors in self._vectors])
        scores_N[self._hidden] = -np.inf
        scores_N[number] = -np.inf
        count = min(count, int(np.isfinite(scores_N).sum()))
        best = np.argpartition(-scores_N, count - 1)[:count] if count else np.empty(0, np.int64)
        best = np.flatnonzero(scores_N >= scores_N[best].min()) if count else best  # of equal scores, the lower number
        ranked = best[np.lexsort((best, -scores_N[best]))][:count]
        return [Neighbour(self._name(place), float(scores_N[place])) for place in ranked.tolist()]

    def beginning(self, prefix: str, count: int) -> list[str]:
        """Return names that begin with a text, whatever the case.

        If there are none, names that contain it. They are sorted, at most ``count``.
        """
        wanted, names = prefix.strip().casefold(), self._by_name
        first = bisect_left(names, (wanted, ""))
        found = takewhile(lambda pair: pair[0].startswith(wanted), islice(names, first, None))
        containing = (name for folded, name in names if wanted in folded)
        return [name for _, name in islice(found, count)] or list(islice(containing, count))

    @cached_property
    def _by_name(self) -> list[tuple[str, str]]:
        """All names in order, each behind itself in lower case."""
        return sorted((name.casefold(), name) for names in self._names for name in names)

    def _number(self, name: str) -> int:
        for base, names in zip(self._bases.tolist(), self._names, strict=False):
            if name in names:
                return int(base) + names.index(name)
        raise InputError(f"no entity of type {self.entity_type!r} is named {name!r}")

    def _row(self, number: int) -> np.ndarray:
        partition = int(np.searchsorted(self._bases, number, side="right")) - 1
        row: np.ndarray = self._vectors[partition][number - self._bases[partition]]
        return row

    def _name(self, number: int) -> str:
        partition = int(np.searchsorted(self._bases, number, side="right")) - 1
        return self._names[partition][number - int(self._bases[partition])]

    def _prepared(self, raw_ND: np.ndarray) -> np.ndarray:
        """Return vectors for comparison.

        They have the global embedding added, no bias, and length 1 for ``cos``.
        """
        x_ND: np.ndarray = np.asarray(raw_ND, np.float32) + self._shift
        x_ND = x_ND[:, 1:] if self.config.bias else x_ND
        if not facts_of(self.config.comparator).normalized:
            return x_ND
        normed: np.ndarray = x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), _TINY)
        return normed

    def _scores(self, query_D: np.ndarray, vectors_ND: np.ndarray) -> np.ndarray:
        """Compare a query with all vectors of a partition: float32 (N,)."""
        scores = np.empty(len(vectors_ND), np.float32)
        for start in range(0, len(vectors_ND), BLOCK_ROWS):
            block_KD = self._prepared(vectors_ND[start : start + BLOCK_ROWS])
            scores[start : start + BLOCK_ROWS] = self._compared(query_D, block_KD)
        return scores

    def _compared(self, query_D: np.ndarray, block_KD: np.ndarray) -> np.ndarray:
        facts = facts_of(self.config.comparator)
        if facts.metric == "inner_product":
            product: np.ndarray = block_KD @ query_D
            return product
        squares = np.square(block_KD - query_D).sum(axis=1)
        scores: np.ndarray = -squares if facts.squared else -np.sqrt(squares)
        return scores


def _hidden(directory: Path, entity_type: str, bases: np.ndarray) -> np.ndarray:
    entities = EntitySet.from_bytes((directory / EXPIRED).read_bytes(), source=EXPIRED)
    numbers = entities.numbers(entity_type, bases)
    return np.empty(0, np.int64) if numbers is None else numbers


def _global(path: Path, config: ConfigSchema, entity_type: str) -> np.ndarray:
    """Return the type's global embedding; zeros where the model has none."""
    if not config.global_emb:
        return np.zeros(config.entity_dimension(entity_type), np.float32)
    found: np.ndarray = read_model(path).params[f"entities/{entity_type}/global_embedding"]
    return found
