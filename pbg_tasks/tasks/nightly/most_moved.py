"""The entities that moved most, by name, with the edges around them.

Each edge was added, removed or kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import PartitionResult, PreserveResult
from pbg_tasks.evaluate.ids import Numbering
from pbg_tasks.evaluate.relation_drift import End, Surroundings
from pbg_tasks.formats.tables import present_files
from pbg_tasks.model.families import Families
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.lookup import edge_hash, hashes_among, names_at, places_of
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.runs.night import SPLITS, NightEdges

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import duckdb

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config.graph import Columns
    from pbg_tasks.evaluate.relation_drift import Edge
    from pbg_tasks.tasks.nightly.baseline import Baseline

EDGES_OF_ONE = 200
"""Edges of one entity that are looked at, of either night."""
SHOWN_EDGES = 10


class ExplainingEdge(TypedDict):
    """An edge around an entity that moved; ``change``: ``added``, ``removed`` or ``kept``."""

    lhs: str
    rel: str
    rhs: str
    change: str


class MovedEntity(TypedDict):
    """An entity that moved, and the edges around it.

    ``changes`` counts all that were looked at, by change; ``edges`` lists the first of them.
    """

    type: str
    entity: str
    cosine: float
    changes: dict[str, int]
    edges: list[ExplainingEdge]


class _Named(NamedTuple):
    """An edge by names, with the hash that identifies it in snapshots."""

    lhs: str
    rel: str
    rhs: str
    hash: int


@dataclass(frozen=True, slots=True)
class _Night:
    """Names of one night's entities and relations.

    Attributes:
        connection: for look-ups.
        directory: local one, with the ids of all types.
        columns: of its snapshot.
        relations: names by id.
        numbering: of its entities.
    """

    connection: duckdb.DuckDBPyConnection
    directory: Path
    columns: Columns
    relations: list[str]
    numbering: Numbering

    def names(self, ends: Collection[End]) -> dict[End, str]:
        """Return the names of some entities."""
        found: dict[End, str] = {}
        for entity in {end.entity for end in ends}:
            bases = self.numbering.bases[entity]
            numbers = {end.number for end in ends if end.entity == entity}
            places = {number: int(bases.searchsorted(number, side="right")) - 1 for number in numbers}
            by_place = {(part, number - int(bases[part])): number for number, part in places.items()}
            named = names_at(self.connection, self.directory, entity, by_place)
            found |= {End(entity, by_place[place]): name for place, name in named.items()}
        return found

    def ends(self, names: Mapping[End, str]) -> dict[End, End]:
        """Match another night's entities with this night's, by name.

        Entities that this night does not have are left out.

        Args:
            names: of the other night's entities.

        Returns:
            This night's entity to the other night's of the same name.
        """
        found = {}
        for entity in {end.entity for end in names} & self.numbering.bases.keys():
            by_name = {name: end for end, name in names.items() if end.entity == entity}
            places = places_of(self.connection, self.directory, entity, by_name)
            for name, (part, offset) in places.items():
                found[End(entity, int(self.numbering.bases[entity][part]) + offset)] = by_name[name]
        return found

    def named(self, edges: Mapping[End, list[Edge]]) -> dict[End, list[_Named]]:
        """Return the edges around entities by names."""
        names = self.names({end for listed in edges.values() for edge in listed for end in (edge.lhs, edge.rhs)})
        found = {}
        for end, listed in edges.items():
            named = [self._named(edge, names) for edge in listed]
            found[end] = [*dict.fromkeys(named)]
        return found

    def _named(self, edge: Edge, names: Mapping[End, str]) -> _Named:
        lhs, rhs = names[edge.lhs], names[edge.rhs]
        rel = self.relations[edge.rel]
        types = {"lhs_type": edge.lhs.entity, "rhs_type": edge.rhs.entity}
        return _Named(lhs, rel, rhs, edge_hash(self.columns, lhs=lhs, rel=rel, rhs=rhs, **types))


def explain(
    run: RunContext, baseline: Baseline, relations: list[str], moved: Mapping[End, float], around: Surroundings
) -> list[MovedEntity]:
    """Name entities that moved, and the edges around them.

    An edge is ``added`` or ``removed`` since the release before, or ``kept``. Removed edges are known as long as the
    release's run still has its edge files. A release without the hashes of its edges gives no edges at all.

    Args:
        run: of tonight.
        baseline: the release.
        relations: tonight's names.
        moved: entities with their cosine.
        around: tonight's edges of each.
    """
    if not moved:
        return []
    edges: dict[End, list[ExplainingEdge]] = {end: [] for end in moved}
    with Scratch() as scratch, connect(run.spec.graph.resources, scratch.path) as connection:
        ours = open_preserved(run.store, run.need(PreserveResult).directory)
        tonight = _open(connection, run, ours, relations, scratch.path / "now")
        names = tonight.names(moved)
        if present_files(EDGE_HASHES, baseline.files.names):
            around_now = tonight.named(around.edges)
            before = _hashes(connection, baseline.files, scratch.path / "before", around_now)
            _explain(edges, around_now, before, "kept", "added")
            around_then = _edges_then(connection, baseline, run, names, scratch.path / "then")
            now = _hashes(connection, ours, scratch.path / "hashes", around_then)
            _explain(edges, around_then, now, None, "removed")
    return [
        {
            "type": end.entity,
            "entity": names[end],
            "cosine": round(cosine, 6),
            "changes": _counts(edges[end]),
            "edges": sorted(edges[end], key=lambda edge: edge["change"] == "kept")[:SHOWN_EDGES],
        }
        for end, cosine in moved.items()
    ]


def _counts(edges: list[ExplainingEdge]) -> dict[str, int]:
    return dict(Counter(edge["change"] for edge in edges))


def _open(
    connection: duckdb.DuckDBPyConnection, run: RunContext, files: VerifiedFiles, relations: list[str], directory: Path
) -> _Night:
    """Download the ids of a run's entities, which have their names."""
    directory.mkdir()
    files.fetch_all(files.of_tables(*map(entity_ids_file_name, run.config.entities)), directory)
    numbering = Numbering(run.config, run.need(PartitionResult).counts, Families(run.config, len(relations)))
    return _Night(connection, directory, run.spec.graph.columns, relations, numbering)


def _edges_then(
    connection: duckdb.DuckDBPyConnection,
    baseline: Baseline,
    run: RunContext,
    names: Mapping[End, str],
    directory: Path,
) -> dict[End, list[_Named]]:
    """Return the edges of entities in the release's own run.

    Where the release was adopted, or its rows were moved since, there is no such run and the result is empty.
    """
    if run.store.head(f"runs/{baseline.release.run}/{RunLayout.result('bucket')}") is None:
        return {}
    trained = RunContext.within(run.store, baseline.release.run)
    then = _open(connection, trained, baseline.files, baseline.relations, directory)
    ends = then.ends(names)
    around = Surroundings(trained.config, Families(trained.config, len(then.relations)), list(ends), EDGES_OF_ONE)
    for piece in NightEdges(trained, directory).of(*SPLITS):
        around.add(then.numbering.triples([piece]))
    return {ends[end]: listed for end, listed in then.named(around.edges).items()}


def _hashes(
    connection: duckdb.DuckDBPyConnection, files: VerifiedFiles, directory: Path, edges: Mapping[End, list[_Named]]
) -> set[int]:
    """Return the hashes of those edges that a release's snapshot had."""
    directory.mkdir()
    files.fetch_table(EDGE_HASHES, directory)
    return hashes_among(connection, directory, {edge.hash for listed in edges.values() for edge in listed})


def _explain(
    explained: dict[End, list[ExplainingEdge]],
    edges: Mapping[End, list[_Named]],
    hashes: set[int],
    there: str | None,
    lacking: str,
) -> None:
    """Add edges with their change.

    It is ``there`` where the other night has them too, else ``lacking``.
    """
    for end, listed in edges.items():
        for edge in listed:
            change = there if edge.hash in hashes else lacking
            if change is not None:
                explained[end].append({"lhs": edge.lhs, "rel": edge.rel, "rhs": edge.rhs, "change": change})
