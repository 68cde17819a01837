"""Trained model that is queried by names.

The file is longer than others so that all that a service can ask is in one class.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from pbg_tasks.api.edges import edge_table
from pbg_tasks.api.known_edges import KnownEdges
from pbg_tasks.api.loading import open_contents
from pbg_tasks.api.names import UnknownNameError, as_bags, as_names, as_numbers
from pbg_tasks.api.notebook import EmbeddingMap, html_table
from pbg_tasks.api.queries import Resolver
from pbg_tasks.api.relations import RelationIndex
from pbg_tasks.config.base import parse
from pbg_tasks.config.comparators import facts_of
from pbg_tasks.config.contract import Contract
from pbg_tasks.errors import InputError
from pbg_tasks.model.parameters import OTHER_SIDE, SIDES, global_path
from pbg_tasks.progress import fraction
from pbg_tasks.report.embedding_map import map_document
from pbg_tasks.tasks.model_source import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.api.loading import Contents, EntityTable
    from pbg_tasks.api.names import Column
    from pbg_tasks.api.scoring import EdgeScorer, Ends
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.filters import Answers as KnownAnswers
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.report.embedding_map import Sampled

MAP_POINTS = 1500
"""Entities of a map, of all types together, as on the page of a run."""
_LISTED = 8
"""Relations that the table of a model names."""


class Answer(NamedTuple):
    """Entity and its score; higher is better."""

    name: str
    score: float


Answers = list[Answer] | list[list[Answer]]
"""Answers of one query, best first; for a list of queries, a list of them."""


class Model:
    """One version of a trained model.

    ``Model.open`` opens it, and ``train`` returns it. Entities and relations are identified by their names; whole
    numbers stand for their decimal text. Where a method takes names it takes a single one, or a list, numpy array,
    Arrow array or a data frame's column of them.

    The embeddings stay in their files and are mapped into memory. Files of a remote store are in a private directory
    that is removed with the model: use it in a ``with`` block, ``close`` it, or just drop it. Reading is safe from
    several threads.

    Args:
        contents: the loaded data.
        resources: released with the model.
    """

    def __init__(self, contents: Contents, resources: ExitStack) -> None:
        self._contents, self._relations = contents, RelationIndex(contents.config, contents.relations)
        self._resolver = Resolver(contents.config, self._relations, contents.entities)
        self._release = weakref.finalize(self, resources.close)

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        channel: str | None = None,
        release: int | None = None,
        for_service: str | None = None,
        key: str | None = None,
        entity_path: str | Path | None = None,
        scratch: Path | None = None,
        expect: Contract | Mapping[str, object] | None = None,
    ) -> Self:
        """Open the newest version at a URL.

        An open model does not change when a later version is trained or released.

        Args:
            url: a checkpoint directory (of PBG or of this package, a preserved or released one), a run
                (``{store}/runs/{id}``), or a graph's store. A local path or ``s3://``.
            channel: opens its current release; needed for a store with several.
            release: opens the channel's release of this number instead.
            for_service: name of the service that reads; its pin (``pbg pin --for``) goes before the channel's release.
            key: of a service or user. While a share of the channel's keys reads another release, the key decides, in
                every process alike. Without a key the channel's own release is opened.
            entity_path: directory of the names, if it is not the config's.
            scratch: parent of the private directory; by default ``$PBG_SCRATCH`` or the system's temporary one.
            expect: facts that the reader relies on, such as ``Contract(dimensions={"item": 100})`` or the ``contract``
                of the model that it has; also as a dictionary, such as one of a JSON file.

        Raises:
            ConfigError: ``expect`` has a fact that no contract has, or one of the wrong type.
            NotFoundError: there is no checkpoint.
            InputError: the channel has no release, or none of that number.
            FormatError: a file is missing, damaged, or does not fit the others.
            IncompatibleError: the model is not what is expected.
        """
        if release is not None:
            _check_whole("release", release)
        if expect is not None and not isinstance(expect, Contract):
            expect = parse(Contract, expect, source="expect")
        with ExitStack() as resources:
            find = partial(
                locate, url, channel=channel, release=release, service=for_service, key=key, entity_path=entity_path
            )
            contents = open_contents(resources, find, scratch=scratch, expect=expect)
            return cls(contents, resources.pop_all())

    @cached_property
    def _scorer(self) -> EdgeScorer:
        """Scorer, made for the first question that needs one."""
        from pbg_tasks.api.scoring import EdgeScorer  # takes torch, for which an import need not wait

        return EdgeScorer(self._contents, self._relations)

    @cached_property
    def _numbering(self) -> tuple[object, ...]:
        """Place and names; the place may have been trained anew with others."""
        digests = (table.names.digest() for table in self._contents.entities.values())
        return (self.url, self.version, self.relations, *digests)

    def close(self) -> None:
        """Remove the private directory; the model cannot be used after that."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        of_channel = "" if self.release is None else f" release {self.release} of channel {self._contents.channel!r},"
        return f"<Model{of_channel} version {self.version}, {self.url}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks; names are escaped."""
        return html_table(self._facts())

    def _facts(self) -> Iterator[tuple[str, object]]:
        """Yield what a notebook shows of the model."""
        origin, config = self._contents.origin, self.config
        if origin is not None:
            yield "graph", f"{origin.graph}, snapshot {origin.snapshot}"
        if self.release is not None:
            yield "release", f"{self.release} of channel {self._contents.channel}"
        yield "version", f"{self.version}, {self.url}"
        for kind, table in self._contents.entities.items():
            yield f"entities, {kind}", f"{len(table.names):,}"
        listed = ", ".join(self.relations[:_LISTED]) + (", ..." if len(self.relations) > _LISTED else "")
        yield "relations", f"{len(self.relations):,}: {listed}"
        yield "dimension", config.dimension
        yield "operator", ", ".join(sorted({relation.operator for relation in config.relations}))
        yield "comparator, loss", f"{config.comparator}, {config.loss_fn}"
        if self.mrr is not None:
            yield "MRR, filtered", fraction(self.mrr)

    @property
    def graph(self) -> str | None:
        """Name of the graph; None for a directory of PBG."""
        return None if self._contents.origin is None else self._contents.origin.graph

    @property
    def snapshot(self) -> str | None:
        """Key of the edges; None for a directory of PBG."""
        return None if self._contents.origin is None else self._contents.origin.snapshot

    @property
    def mrr(self) -> float | None:
        """Filtered MRR of the night's held-out edges; None if there is none."""
        return None if self._contents.origin is None else self._contents.origin.mrr

    @property
    def release(self) -> int | None:
        """Number of the release in its channel; None outside a channel."""
        return self._contents.release

    @property
    def url(self) -> str:
        """URL of the checkpoint directory."""
        return self._contents.url

    @property
    def version(self) -> int:
        """Checkpoint version: the number of trained iterations."""
        return self._contents.version

    @property
    def config(self) -> ConfigSchema:
        """Config with which the model was trained."""
        return self._contents.config

    @property
    def contract(self) -> Contract:
        """Vector space, dimensions, comparator and operators."""
        return self._contents.contract

    @property
    def relations(self) -> tuple[str, ...]:
        """Names of the relations, by id."""
        return self._relations.names

    @property
    def entity_types(self) -> tuple[str, ...]:
        """Names of the entity types."""
        return tuple(self._contents.entities)

    def entities(self, entity_type: str | None = None, *, prefix: str = "", limit: int | None = None) -> list[str]:
        """Return the names of a type's entities, by number.

        For a featurized type they are its features.

        Args:
            entity_type: of the entities; needed if the model has several.
            prefix: return names that begin with this text, in the order of their bytes.
            limit: the most that are returned; None: all.

        Raises:
            InputError: the type is not given, and there are several; the limit is negative, or the prefix no text.
            FormatError: the index of the names is damaged.
        """
        if limit is not None:
            _check_whole("limit", limit, least=0)
        if not isinstance(prefix, str):
            raise InputError(f"prefix is {prefix!r:.40}: give a text")
        index = self._only_table(entity_type).names
        if prefix:
            return index.prefixed(prefix, limit)
        return index.names(None if limit is None else np.arange(min(limit, len(index))))

    def names(self, numbers: Column, entity_type: str | None = None) -> list[str]:
        """Return the names of some entities of a type.

        Args:
            numbers: of the entities: the offset in its partition, plus the entities of the partitions before it.
            entity_type: of the entities; needed if the model has several.

        Raises:
            InputError: the type is not given, and there are several; or one is no whole number, or no entity has it.
            FormatError: the index of the names is damaged.
        """
        return self._only_table(entity_type).names.names(as_numbers(numbers))

    def score(
        self,
        lhs: Column,
        rel: Column | None,
        rhs: Column,
        *,
        predict: Side = "rhs",
        lhs_type: str | None = None,
        rhs_type: str | None = None,
    ) -> np.ndarray:
        """Score edges as training and evaluation do; higher is better.

        Args:
            lhs: left ends; a single name is combined with all others. An end of a featurized type is a tuple of
                features.
            rel: relations; None if the model has one.
            rhs: right ends.
            predict: with dynamic relations a model scores an edge in two ways, as an answer to (lhs, rel, ?) or to (?,
                rel, rhs). Without them both are the same but for rounding.
            lhs_type: where several relations have one name, the entity type on the left of the right one.
            rhs_type: same on the right.

        Returns:
            float32 (N,); of shape () if all are single names.

        Raises:
            UnknownNameError: a name is not in the model. It is a ``KeyError``, and names the nearest ones.
            InputError: ``predict`` is no side.
        """
        if predict not in SIDES:
            raise InputError(f"predict is {predict!r:.40}: give 'lhs' or 'rhs'")
        query = self._resolver.query(rel, {"lhs": lhs, "rhs": rhs}, lhs_type=lhs_type, rhs_type=rhs_type)
        scores = np.empty(len(query.rel), np.float32)
        for family, rows in self._resolver.families(query):
            ends = {side: self._resolver.ends(query, family, side, rows) for side in SIDES}
            scores[rows] = self._scorer.pairs(family, ends["lhs"], query.rel[rows], ends["rhs"], predict)
        return scores.reshape(()) if query.single else scores

    def top_k(
        self,
        lhs: Column | None = None,
        rel: Column | None = None,
        rhs: Column | None = None,
        k: int = 10,
        *,
        exclude_known: Any = None,  # noqa: ANN401 - KnownEdges, or edges in any form that train takes
        exclude_self: bool | None = None,
        lhs_type: str | None = None,
        rhs_type: str | None = None,
    ) -> Answers:
        """Return the best right ends for ``lhs``, or left ends for ``rhs``.

        Every entity of the relation's type on that side is scored, as by ``score``. Equal scores are sorted by the
        entities' numbers.

        Args:
            lhs: known left ends.
            rel: relations; None if the model has one.
            rhs: known right ends.
            k: number of answers.
            exclude_known: edges that may not be answers: an index that ``known`` made, or edges in any form that it
                takes.
            exclude_self: whether the known end may not be an answer. By default so where both ends are of one entity
                type and the relation had no loops in training. A model without a record of such relations, as one that
                PBG or an earlier version trained, leaves the known end in.
            lhs_type: as in ``score``.
            rhs_type: same.

        Returns:
            The answers, best first, fewer than ``k`` if there are no more; a list of such if any argument is one.

        Raises:
            UnknownNameError: a name is not in the model.
            InputError: not just one of ``lhs`` and ``rhs`` is given; the missing end is of a featurized type, whose
                entities are bags of features, of which there is no list; or ``exclude_known`` with such a known end,
                or of another model.
        """
        given = {side: value for side, value in zip(SIDES, (lhs, rhs), strict=True) if value is not None}
        if len(given) != 1:
            raise InputError("give one of lhs and rhs: the other end is what is searched")
        _check_whole("k", k)
        (known,) = given
        predict = OTHER_SIDE[known]
        query = self._resolver.query(rel, given, lhs_type=lhs_type, rhs_type=rhs_type)
        index = self._as_known(exclude_known)
        results: list[list[Answer]] = [[] for _ in query.rel]
        for family, rows in self._resolver.families(query):
            entity = getattr(self.config.relations[family], predict)
            if self.config.entities[entity].featurized:
                raise InputError(
                    f"entities of type {entity!r} are bags of features, of which there is no list to search"
                )
            ends, numbers = self._resolver.ends(query, family, known, rows), query.rel[rows]
            if index is not None and not isinstance(ends, np.ndarray):
                raise InputError("exclude_known: edges of featurized entities cannot be indexed")
            excluded = self._excluded(index, family, numbers, ends, predict, exclude_self)
            found = self._scorer.complete(family, ends, numbers, predict, k, excluded)
            for row, answers in zip(rows, self._named(entity, found), strict=True):
                results[row] = answers
        return results[0] if query.single else results

    def known(self, edges: Any) -> KnownEdges:  # noqa: ANN401 - any form of edges
        """Index known edges for ``top_k`` of this model.

        Edges with an end that the model lacks are left out.

        Args:
            edges: in any form that ``train`` takes, with a relation if the model has several.

        Raises:
            UnknownNameError: a relation is not in the model.
        """
        size = 1 + max(len(table.names) for table in self._contents.entities.values())
        return KnownEdges(self._resolver.triples(edge_table(edges)), size, self._numbering)

    def neighbors(self, entity: Column, k: int = 10, entity_type: str | None = None) -> Answers:
        """Return the most similar entities of the same type.

        The entity itself is left out. They are compared by the model's own comparator: ``dot`` by inner product,
        ``cos`` by cosine, ``l2`` and ``squared_l2`` by minus the (squared) distance. Global embeddings are added, as in
        training; with ``bias`` the first dimension is left out, because it shows how often an entity has edges and not
        its similarity to others. No relation's operator is applied. Of a featurized type the entities are its features.

        Args:
            entity: one or several.
            k: number of neighbours.
            entity_type: of the entities; needed if several types have the name.

        Raises:
            UnknownNameError: a name is not in the model.
            InputError: several types have it.
        """
        _check_whole("k", k)
        names, single = as_names(entity)
        kind = self._type_of(names, entity_type)
        numbers = self._table(kind).names.numbers(names)
        found = self._scorer.similar(kind, numbers, k + 1)
        others = [
            (listed[listed != own][:k], scores[listed != own][:k])
            for own, (listed, scores) in zip(numbers, found, strict=True)
        ]
        results = list(self._named(kind, others))
        return results[0] if single else results

    def embedding(self, entity: Column, entity_type: str | None = None) -> np.ndarray:
        """Return embeddings as ``pbg export`` writes them.

        They are float32 (D,) or (N, D), with the global embedding added.

        Args:
            entity: one or several. A tuple of features is one entity of a featurized type: their mean.
            entity_type: of the entities; needed if several types have the name.

        Raises:
            UnknownNameError: a name is not in the model.
            InputError: several types have it.
        """
        listed, single = as_bags(entity)
        kind = self._type_of([name for bag in listed for name in bag], entity_type)
        table = self._table(kind)
        ends = self._resolver.of_type(kind, listed)
        vectors = table.vectors.rows(ends) if isinstance(ends, np.ndarray) else self._scorer.means(kind, ends)
        if self.config.global_emb:
            vectors += self._contents.params[global_path(kind)]
        return vectors[0] if single else vectors

    def table(self, entity_type: str | None = None) -> pa.Table:
        """Return all entities of a type with their embeddings.

        They are copied into memory; ``pbg export`` writes larger ones.

        Returns:
            Columns ``name`` and ``vector``, a list of D float32, with the global embedding added as ``embedding`` does.

        Raises:
            InputError: the type is not given, and there are several.
        """
        names = self.entities(entity_type)
        vectors = self.embedding(names, entity_type or self.entity_types[0])
        listed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        return pa.table({"name": pa.array(names, pa.string()), "vector": listed})

    def map(
        self, entities: Column | None = None, *, entity_type: str | None = None, points: int = MAP_POINTS
    ) -> EmbeddingMap:
        """Project a sample of entities onto two axes.

        The page of a run does the same with its own sample.

        Args:
            entities: to show; None takes a sample of all of each type, evenly over their numbers.
            entity_type: the only type to show, or that of ``entities``.
            points: entities of the sample, of all types together.

        Raises:
            UnknownNameError: a name is not in the model.
            InputError: no entity is left to show.
        """
        samples: dict[str, Sampled] = {}
        if entities is not None:
            names = as_names(entities)[0]
            samples[self._type_of(names, entity_type)] = self._sample(self._type_of(names, entity_type), names)
        else:
            kinds = self._mapped() if entity_type is None else [entity_type]
            for kind in kinds:
                index, hidden = self._table(kind).names, self._table(kind).vectors.hidden
                shown = np.setdiff1d(np.arange(len(index)), hidden, assume_unique=True)
                share = min(len(shown), max(1, points // len(kinds)))
                numbers = shown[np.unique(np.linspace(0, len(shown) - 1, share).astype(np.int64))] if share else shown
                if len(numbers):
                    samples[kind] = self._sample(kind, index.names(numbers))
        if not samples or not any(len(sample["names"]) for sample in samples.values()):
            raise InputError("map: there is no entity to show")
        normalized = facts_of(self.config.comparator).normalized
        return EmbeddingMap(map_document(samples, normalized=normalized, release=None))

    def _mapped(self) -> list[str]:
        """Return the types that have the model's own dimension."""
        return [kind for kind in self.entity_types if self.config.entity_dimension(kind) == self.config.dimension]

    def _sample(self, kind: str, names: list[str]) -> Sampled:
        rows = self.embedding(names, kind)[:, int(self.config.bias) :]  # as neighbours are compared
        return {"names": names, "rows": rows, "before": None, "entities": len(self._table(kind).names)}

    def _excluded(
        self,
        index: KnownEdges | None,
        family: int,
        rel: np.ndarray,
        known: Ends,
        predict: Side,
        exclude_self: bool | None,  # noqa: FBT001 - as top_k takes it
    ) -> KnownAnswers | None:
        """Return the entities that may not be answers, for a family's queries."""
        if not isinstance(known, np.ndarray):
            return None
        relation, selves = self.config.relations[family], np.zeros(len(rel), bool)
        if relation.lhs == relation.rhs:
            if exclude_self is not None:
                selves[:] = exclude_self
            elif self._contents.loops is not None:
                selves = ~np.isin(rel, self._contents.loops)
        if index is None and not selves.any():
            return None
        index = KnownEdges.none(1 + len(self._table(relation.rhs).names)) if index is None else index
        return index.answers(rel, known, predict, selves)

    def _as_known(self, edges: Any) -> KnownEdges | None:  # noqa: ANN401 - KnownEdges or edges
        """Return an index of known edges, of this model alone."""
        if not isinstance(edges, KnownEdges):
            return None if edges is None else self.known(edges)
        if edges.model != self._numbering:
            raise InputError(f"exclude_known: an index of another model than {self!r}; make one of it by its `known`")
        return edges

    def _named(self, entity: str, found: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterable[list[Answer]]:
        index = self._table(entity).names
        for numbers, scores in found:
            yield [Answer(*pair) for pair in zip(index.names(numbers), scores.tolist(), strict=True)]

    def _only_table(self, entity_type: str | None) -> EntityTable:
        if entity_type is None and len(self.entity_types) > 1:
            raise InputError(f"name an entity type: the model has {', '.join(map(repr, self.entity_types))}")
        return self._table(self.entity_types[0] if entity_type is None else entity_type)

    def _table(self, entity_type: str) -> EntityTable:
        table = self._contents.entities.get(entity_type)
        if table is None:
            raise UnknownNameError(
                f"no entity type is named {entity_type!r}; the model has {', '.join(map(repr, self.entity_types))}"
            )
        return table

    def _type_of(self, names: list[str], entity_type: str | None) -> str:
        """Return the given type, or the one with the first name."""
        if entity_type is not None or len(self.entity_types) == 1:
            return self.entity_types[0] if entity_type is None else entity_type
        having = [kind for kind, table in self._contents.entities.items() if names and names[0] in table.names]
        if len(having) == 1:
            return having[0]
        if having:
            raise InputError(f"{names[0]!r} is the name of entities of the types {', '.join(having)}: give entity_type")
        raise UnknownNameError(f"no entity of any type is named {names[0]!r}" if names else "name an entity")


def _check_whole(name: str, value: object, *, least: int = 1) -> None:
    """Refuse a number that is not whole, or too small."""
    if not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{name} is {value!r}: give a whole number of at least {least}")
