"""``pbg init LOCATION --store STORE``: a graph spec from a snapshot."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pbg_tasks.config import Gates, GraphSpec, Resources
from pbg_tasks.config.base import parse
from pbg_tasks.config.names import check_entity_name, unsafe_name
from pbg_tasks.config.presets import OPERATOR, PRESET, of_size, takes_self_negatives
from pbg_tasks.errors import InputError, printable
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.kinds import LISTED, count_kinds
from pbg_tasks.progress import say
from pbg_tasks.storage import is_remote, open_store
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.nightly.draft_source import find_snapshots, read_columns, recognise, snapshot_before

if TYPE_CHECKING:
    import duckdb

    from pbg_tasks.prepare.kinds import Kinds
    from pbg_tasks.tasks.nightly.draft_source import DraftSource

_ENTITY, _DIMENSION = "entity", 200
_TRIED = 3
"""Number of the newest snapshots that are tried, as errors of all may have one cause."""
_LEAST_EDGES = 0.5
"""Share of this snapshot's edges below which a later one is refused."""


_GATES = """A night with fewer edges is refused, and one whose MRR falls by more than a fifth. min_mrr is a floor, to be
raised once a night has shown what the graph gives. Where each snapshot is a day of new events, add to data:
max_removed_edges: {}, max_gone_entities: {}"""
_REPEATED = """
{:.0%} of the edges repeat another one: right where each row is an event, wrong where a table was written twice.
max_duplicates: {{}} lets them pass"""
_GUESSED = """the columns of an edge. The first line counts as their names, because its values stand in no other line;
if it is an edge, set header: false, and lhs, rel and rhs to column0, column1 and so on"""
_BY_VALUES = (
    "no column has a usual name: {} counts as the left end, {} as the relation, because it has the fewest values, "
    "{} as the right end"
)
_MANY = 1_000_000  # pairs of entities: from here on, a hundredth of them is enough to measure with
_USUAL_SHARE, _MOST_SHARE = 0.05, 0.2
_SPARE = 1.5  # some pairs stay in training, because an entity would have no other edge there; others leave the graph
_APART = "no name is on both sides"
_TWO_TYPES = """Where the sides are different
things, such as user 7 and item 7, make two types: entities: {user: {num_partitions: auto}, item: ...}, and in the
relation lhs: user, rhs: item, without self_negatives"""
_FROM_DATA = "all"  # the entry that stands for all relations of the column


def draft_spec(
    location: str,
    store: str,
    *,
    graph: str | None = None,
    columns: dict[str, str] | None = None,
    memory_gb: float = 4.0,
) -> str:
    """Return a graph spec, YAML with comments, for the newest readable snapshot.

    Of the newest snapshots, those that cannot be read or have no edges are named in a warning.

    Args:
        location: of the snapshots, as ``find_snapshots`` takes it.
        store: of the graph.
        graph: its name; the last part of the store by default.
        columns: names by role, as ``ROLES`` lists them, where they are not the usual ones.
        memory_gb: budget of the counting, in GB.

    Raises:
        InputError: there is no snapshot, or none of the newest can be read and has edges.
        ConfigError: columns cannot be recognised, no graph can have the name, or no store has the scheme.
    """
    root = store if is_remote(store) else str(Path(store.removeprefix("file://")).expanduser().absolute())
    open_store(root)  # a spec for a store that nothing here opens could not run
    name = graph or re.sub(r"[^A-Za-z0-9_-]+", "-", root.rstrip("/").rpartition("/")[2]).strip("-_") or "graph"
    resources = Resources(memory_gb=memory_gb)
    with Scratch() as scratch, connect(resources, scratch.path) as connection:
        source, kinds = _newest_readable(find_snapshots(location), name, root, columns or {}, connection)
    sections = _sections(name, root, source, kinds)
    parse(GraphSpec, {key: value for _, keys in sections for key, value in keys.items()}, source="the new spec")
    if source.unread:
        relation = "" if source.columns.rel else "; one that is the relation is named by --rel-col"
        say(f"warning: columns that are not read: {source.unread}{relation}")
    if source.by_values:
        say(f"warning: {_by_values(source)}; if that is wrong, name the ends with --lhs-col and --rhs-col")
    say(f"init: snapshot {source.key}, {kinds.edges:,} edges; keep the spec in a file, then: pbg run FILE")
    return "\n".join(f"{_commented(text)}{yaml.safe_dump(keys, sort_keys=False)}" for text, keys in sections)


def _newest_readable(
    source: DraftSource, name: str, store: str, given: dict[str, str], connection: duckdb.DuckDBPyConnection
) -> tuple[DraftSource, Kinds]:
    """Return the newest readable snapshot and the kinds of its edges.

    Raises:
        InputError: none of the newest can be read; the error of the newest.
    """
    errors: list[tuple[str, InputError]] = []
    while True:
        try:
            read = recognise(read_columns(source, given.values(), connection), given, connection)
            kinds = count_kinds(connection, _provisional(name, store, read), read.files)
            if (why := _why_untyped(read, kinds)) is not None:
                say(f"warning: the columns of entity types are left out: {why}")
                untyped = read.columns.model_copy(update={"lhs_type": None, "rhs_type": None})
                read = replace(read, columns=untyped)
                kinds = count_kinds(connection, _provisional(name, store, read), read.files)
            break
        except InputError as refused:
            errors.append((source.key, refused))
        before = snapshot_before(source) if len(errors) < _TRIED else None
        if before is None:
            raise errors[0][1]
        source = before
    for key, reason in errors:
        say(f"warning: snapshot {key} is passed over: {reason}")
    return read, kinds


def _why_untyped(source: DraftSource, kinds: Kinds) -> str | None:
    """Return why no spec could run with the columns of entity types.

    None where it could, or where there are no such columns.
    """
    if source.columns.lhs_type is None:
        return None
    if not kinds.listed:
        return f"relations and types have more than {LISTED} combinations, and each takes an entry of model.relations"
    if source.columns.rel is None and len(kinds.listed) > 1:
        return "without a column of relations, all edges have to lead from one type to one other"
    return next((why for kind in kinds.entities if (why := _why_no_type(kind)) is not None), None)


def _why_no_type(name: str) -> str | None:
    try:
        return unsafe_name(check_entity_name(name))
    except ValueError as error:
        return str(error)


def _by_values(source: DraftSource) -> str:
    """Return how columns without usual names were read."""
    columns = source.columns
    return _BY_VALUES.format(*(printable(str(name)) for name in (columns.lhs, columns.rel, columns.rhs)))


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())


def _provisional(name: str, store: str, source: DraftSource) -> GraphSpec:
    """Return a spec that reads the columns, whatever the relations are."""
    model = {
        "entities": {_ENTITY: {"num_partitions": 1}},
        "relations": [{"name": "edge", "lhs": _ENTITY, "rhs": _ENTITY}],
        "dynamic_relations": source.columns.rel is not None,
        "dimension": _DIMENSION,
    }
    snapshots, columns = source.snapshots.model_dump(), source.columns.model_dump()
    keys = {"graph": name, "store": store, "snapshots": snapshots, "columns": columns, "model": model}
    return parse(GraphSpec, keys, source="the new spec")


def _sections(name: str, store: str, source: DraftSource, kinds: Kinds) -> list[tuple[str, dict[str, object]]]:
    """Return the sections of a spec, each with a comment."""
    model, comment = _model(source, kinds)
    least, block = round(kinds.edges * _LEAST_EDGES), Gates().data.max_duplicates.block
    events: dict[str, object] = {"max_duplicates": {}} if block is not None and kinds.repeated > block else {}
    snapshots = source.snapshots.model_dump(exclude_defaults=True)
    keys = (
        f"{len(source.keys):,} found, the newest is {source.key}"
        if len(source.keys) > 1
        else f"one found, {source.key}"
    )
    return [
        (
            f"Made by pbg init from snapshot {source.key}: a start, not tuned. All keys: pbg keys",
            {"graph": name, "store": store},
        ),
        (
            f"{{snapshot}} stands for the key of a night: {keys}",
            {"snapshots": snapshots | {"format": source.snapshots.format}},
        ),
        (
            (_GUESSED if source.guessed else "the columns of an edge")
            + (f"\n{_by_values(source)}" if source.by_values else "")
            + (f"\nnot read: {source.unread}" if source.unread else ""),
            {"columns": source.columns.model_dump(exclude_none=source.columns.rel is not None)},
        ),
        (comment, {"model": model}),
        (_held_out(kinds), {"split": _split(kinds.pairs)}),
        (
            _GATES + (_REPEATED.format(kinds.repeated) if events else ""),
            {"gates": {"min_mrr": 0.0, "max_mrr_drop": 0.2, "data": {"min_edges": {"block": least}} | events}},
        ),
        (
            "memory of preparation, and what the forecast of training is compared with, in GB",
            {"resources": {"memory_gb": 4}},
        ),
    ]


def _split(pairs: int) -> dict[str, float]:
    """Return shares that hold out enough edges to measure with.

    Of a pair that is held out one edge is ranked. Of a small graph the share of test is larger, as far as that leaves
    enough to train with.
    """
    if pairs >= _MANY:
        return {"valid": 0.01, "test": 0.01}
    wanted = _SPARE * Gates().min_common_edges / max(pairs, 1)
    return {"valid": _USUAL_SHARE, "test": min(max(math.ceil(100 * wanted) / 100, _USUAL_SHARE), _MOST_SHARE)}


def _held_out(kinds: Kinds) -> str:
    """Return a comment on the edges that two nights are compared by."""
    least, share = Gates().min_common_edges, _split(kinds.pairs)["test"]
    held = round(kinds.pairs * share)
    each = " (one for each pair of entities)" if kinds.pairs < kinds.edges else ""
    few = "enough"
    if share > _USUAL_SHARE:
        few = f"for which test is {share:g} instead of {_USUAL_SHARE:g}"
    if held < least:
        few = f"too few, but a share above {_MOST_SHARE:g} leaves too little to train with"
    return (
        "edges that are held out for ever, to measure with; two nights are compared by those of test that both know,\n"
        f"if they are gates.min_common_edges ({least}) or more: here about {held:,}{each}, {few}"
    )


def _model(source: DraftSource, kinds: Kinds) -> tuple[dict[str, object], str]:
    """Return the model and a comment on it."""
    entities, relations, comment = _relations(source, kinds)
    dynamic = source.columns.rel is not None and len(relations) == 1 and relations[0]["name"] == _FROM_DATA
    keys = {entity: {"num_partitions": "auto"} for entity in entities}
    model: dict[str, object] = {"entities": keys, "relations": relations}
    model |= {"dynamic_relations": True} if dynamic else {}
    model |= {"dimension": _DIMENSION, **PRESET, **of_size(kinds.edges)}
    del model["eval_fraction"]  # a night's own default
    if any(takes_self_negatives(relation, keys) for relation in relations):
        model["self_negatives"] = True
    between = ", ".join(f"{count:,} {entity}" for entity, count in kinds.entities.items() if entity in entities)
    counted = f"{kinds.edges:,} edges, {_about(kinds.relations)}{between and f', {between}'}"
    return model, f"{counted}:\n{comment}"


def _about(relations: int) -> str:
    return f"about {relations:,} relations" if relations > 1 else "one relation"


def _relations(source: DraftSource, kinds: Kinds) -> tuple[list[str], list[dict[str, str]], str]:
    """Return entity types, relations and a comment on them."""
    columns = source.columns
    if columns.lhs_type is not None and kinds.listed:
        entities = sorted({str(kind) for _, lhs, rhs, _ in kinds.listed for kind in (lhs, rhs)})
        relations = [_relation(rel or "edge", str(lhs), str(rhs)) for rel, lhs, rhs, _ in kinds.listed]
        return entities, relations, "entity types and relations as the columns name them, the most frequent first"
    name, comment = "edge", "one relation"
    if columns.rel is not None:
        name, comment = _FROM_DATA, "the relations come from the column, so a new one needs no change here"
    ends = [columns.lhs, columns.rhs]
    if not kinds.common and not any(unsafe_name(end) for end in ends):
        operator = OPERATOR if columns.rel is not None else "translation"
        comment = f"two entity types, because {_APART}; {comment}"
        return ends, [_relation(name, *ends, operator=operator)], comment
    operator = OPERATOR if columns.rel is not None else "none"
    sides = f"{kinds.common:,} edges begin at a name that is a right end, too" if kinds.common else _APART
    comment = f"one entity type; {comment}\n{sides}. {_TWO_TYPES}"
    return [_ENTITY], [_relation(name, _ENTITY, _ENTITY, operator=operator)], comment


def _relation(name: str, lhs: str, rhs: str, *, operator: str = OPERATOR) -> dict[str, str]:
    return {"name": name, "lhs": lhs, "rhs": rhs, "operator": operator}
