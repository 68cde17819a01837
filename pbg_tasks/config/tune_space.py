"""Candidates of a search, and contradictions of its space.

All of it is a pure function of the graph spec: the same spec gives the same candidates in every process.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pbg_tasks.config.base import digest, explain, parse
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.config.legacy import spelling
from pbg_tasks.config.overrides import override
from pbg_tasks.config.registry import COMPARATORS, LOSSES, OPERATORS, REGULARIZERS
from pbg_tasks.config.schema import ModelConfig
from pbg_tasks.config.shape import model_at, within
from pbg_tasks.config.tune import Range, Tune
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config.tune import Choice
    from pbg_tasks.plugins import Kind

BASE = (
    *("eval.split=valid", "train.warm_start=false", "train.warm_epochs=null", "train.anchor=0.0"),
    *("train.shrink=null", "train.delta=null", "train.early_stopping=null"),
    *("model.num_machines=1", "model.num_partition_servers=-1", "launch.ranks=1"),
)
"""Changes of the spec for a search.

Candidates begin at random, train to the end of their rung, each in one process, and are ranked on the valid split.
"""
_MOST_DRAWS = 100  # for each candidate, until one is new
_BEGINS = "candidates begin at random, so it changes nothing"
_NO_PARTS = {
    "train.warm_start": _BEGINS,
    "train.warm_epochs": _BEGINS,
    "train.new_entities": _BEGINS,
    "train.anchor": _BEGINS,
    "train.shrink": _BEGINS,
    "train.delta": _BEGINS,
    "model.init_path": _BEGINS,
    "train.early_stopping": "candidates are ranked on the valid split, by which it would stop them",
    "model.num_machines": "each candidate is trained by one process",
    "model.num_partition_servers": "each candidate is trained by one process",
}
"""Keys that have no part in a search, with the reason."""


def beginning(graph: GraphSpec) -> list[str]:
    """Return the change by which candidates begin at random.

    None with frozen types: vectors that no candidate trains stay those of ``init_path``, and not random.
    """
    tried = [key for key in (graph.tune.space if graph.tune else {}) if key.endswith(".trainable")]
    return [] if graph.model.frozen_types or tried else ["model.init_path=null"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings that a search tries.

    Attributes:
        changes: values by key path, in the order of the space.
    """

    changes: Mapping[str, JsonValue]

    @property
    def id(self) -> str:
        """Name of the candidate, from its changes alone."""
        return digest(dict(self.changes))[:12]


def candidates(tune: Tune) -> list[Candidate]:
    """Return the candidates of a search.

    They are all combinations in the order of the space, or samples that follow from ``seed``, none of them twice.

    Raises:
        ConfigError: so many different samples cannot be found.
    """
    if tune.samples is None:
        values = [choice for choice in tune.space.values() if isinstance(choice, tuple)]
        return [Candidate(dict(zip(tune.space, each, strict=True))) for each in itertools.product(*values)]
    rng = random.Random(tune.seed)  # noqa: S311 - a reproducible draw, no secret
    found: dict[str, Candidate] = {}
    for _ in range(tune.samples * _MOST_DRAWS):
        drawn = {
            key: choice.draw(rng) if isinstance(choice, Range) else rng.choice(choice)
            for key, choice in tune.space.items()
        }
        candidate = Candidate(drawn)
        found.setdefault(candidate.id, candidate)
        if len(found) == tune.samples:
            return list(found.values())
    raise ConfigError(
        f"tune.samples: only {len(found)} different candidates were found in the space, and {tune.samples} are asked; "
        "give fewer samples, or wider ranges"
    )


def rung_epochs(graph: GraphSpec, tune: Tune) -> list[int | None]:
    """Return the epochs at the end of each rung.

    None stands for ``model.num_epochs`` of each candidate.
    """
    return [None] if tune.halving is None else [*tune.halving.epochs(graph.model.num_epochs)]


def assignments(changes: Mapping[str, JsonValue]) -> list[str]:
    """Return changes in the form of ``-p KEY.PATH=VALUE``."""
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def read_patch(path: Path) -> list[str]:
    """Return the changes of a patch, in the form of ``-p KEY.PATH=VALUE``.

    Raises:
        ConfigError: the file cannot be read, or a key is a whole section.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    document = parse_document(data, source=str(path))
    for key in document:
        if model_at(within(GraphSpec, key)) is not None:
            raise ConfigError(f"{path}: {key} is a whole section; write paths of single keys, such as model.lr: 0.1")
    return assignments(document)


def changed(graph: GraphSpec, changes: Mapping[str, JsonValue], *, source: str) -> GraphSpec:
    """Return the spec of a candidate.

    Raises:
        ConfigError: the values contradict each other, or the rest of the spec.
    """
    return parse(GraphSpec, _document(graph, changes, source), source=source)


def _document(graph: GraphSpec, changes: Mapping[str, JsonValue], source: str) -> dict[str, Any]:
    return override(graph.model_dump(mode="json"), assignments(changes), source=source, schema=GraphSpec)


def named_parts(graph: GraphSpec, changes: Mapping[str, JsonValue], *, source: str) -> list[tuple[Kind, str]]:
    """List the parts that a candidate names, installed or not.

    Raises:
        ConfigError: this version does not know a key.
    """
    model = _document(graph, changes, source)["model"]
    relations = [each for each in model["relations"] if isinstance(each, dict)]
    found = [(COMPARATORS, model["comparator"]), (LOSSES, model["loss_fn"]), (REGULARIZERS, model["regularizer"])]
    found += [(OPERATORS, each.get("operator")) for each in relations]
    return [(kind, name) for kind, name in found if isinstance(name, str)]


def require_tunable(graph: GraphSpec, *, source: str) -> Tune:
    """Return the search of a spec, free of contradictions.

    A value that is wrong in itself is refused here. Values that only contradict each other make a candidate that fails.

    Raises:
        ConfigError: there is no search, or keys of it are wrong; the message names each.
    """
    tune = graph.tune
    if tune is None:
        raise ConfigError(f"{source}: has no section tune, so there is nothing to search; see docs/tuning.md")
    if problems := list(_problems(graph, tune, source)):
        raise ConfigError(f"{source}: {'; '.join(problems)}")
    candidates(tune)
    return tune


def _problems(graph: GraphSpec, tune: Tune, source: str) -> Iterator[str]:
    if not graph.split.valid:
        yield "tune: candidates are ranked on the valid split, yet split.valid is 0; give it a share"
    if not graph.model.num_epochs:
        yield "tune: model.num_epochs is 0, so no candidate would be trained"
    for key, choice in tune.space.items():
        if problem := _problem(tune, key) or _value_problem(graph, key, choice, source):
            yield f"tune.space.{key}: {problem}"
    if (tune.samples or tune.combinations) < 2:  # noqa: PLR2004 - a comparison takes two
        yield "tune.space: makes one candidate, and a search compares at least two"
    if tune.halving is not None and graph.model.num_epochs:
        try:
            tune.halving.epochs(graph.model.num_epochs)
        except ValueError as error:
            yield f"tune.halving: {error}"


def _problem(tune: Tune, key: str) -> str | None:
    """Return why a key has no part in a search."""
    if not key.startswith(("model.", "train.")):
        return "candidates share one prepared snapshot, so only keys below model and train can be tried"
    section, name = key.split(".")[:2]
    if section == "model" and (today := spelling(ModelConfig, name)) != name:
        return f"is an old spelling of model.{today}; write that"
    for name, reason in _NO_PARTS.items():
        if key == name or key.startswith(f"{name}."):
            return reason
    if key == "model.num_epochs" and tune.halving is not None:
        return "halving decides about epochs; remove it, or this key"
    if other := next((each for each in tune.space if key.startswith(f"{each}.")), None):
        return f"is a part of {other}, which is in the space, too; remove one of the two"
    return None


def _value_problem(graph: GraphSpec, key: str, choice: Choice, source: str) -> str | None:
    """Return the fault of the first value that is wrong in itself."""
    for value in _ends(choice):
        try:
            document = _document(graph, {key: value}, source)
        except ConfigError as error:
            return str(error).removeprefix(f"{source}: ")
        try:
            found = GraphSpec.model_validate(document)
        except ValidationError as error:
            if any(_is_at(problem["loc"], key) for problem in error.errors(include_url=False)):
                return f"{json.dumps(value)}: {explain(GraphSpec, error)}"
            continue
        if _preparation(found) != _preparation(graph):
            return "the prepared snapshot depends on it, and all candidates share one; make a spec for each value"
        if graph.model.num_epochs and not found.model.num_epochs:
            return f"{json.dumps(value)}: such a candidate would not be trained; give 1 epoch or more"
        for frozen in graph.model.frozen_types if graph.model.init_path else ():
            if found.model.entity_dimension(frozen) != graph.model.entity_dimension(frozen):
                return f"{json.dumps(value)}: vectors of frozen type {frozen!r} in model.init_path have another one"
    return None


def _ends(choice: Choice) -> Sequence[JsonValue]:
    if not isinstance(choice, Range):
        return choice
    return [int(each) if choice.int else each for each in (choice.low, choice.high)]


def _is_at(location: tuple[int | str, ...], key: str) -> bool:
    """Return whether a problem is of a key, or below it."""
    path = ".".join(map(str, location))
    bare = key.replace('"', "").replace("'", "")
    return path == bare or path.startswith(f"{bare}.")


def _preparation(graph: GraphSpec) -> list[Any]:
    """Return the settings on which entities and edges depend."""
    model = graph.model
    return [
        {name: (entity.num_partitions, entity.featurized) for name, entity in model.entities.items()},
        [(relation.name, relation.lhs, relation.rhs) for relation in model.relations],
        model.dynamic_relations,
        graph.split,
        graph.columns,
        graph.snapshots,
    ]
