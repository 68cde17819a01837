"""Reading of configs and specs: parsed, changed by path, validated.

They are never executed. Overrides change keys by path before the whole is validated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.base import Model, parse
from pbg_tasks.config.comparators import facts_of
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.exports import RUN, SNAPSHOT
from pbg_tasks.config.graph import EarlyStoppingRule, GraphSpec
from pbg_tasks.config.legacy import modernize
from pbg_tasks.config.names import check_entity_names
from pbg_tasks.config.overrides import override
from pbg_tasks.config.schema import ConfigSchema
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pbg_tasks.config.schema import ModelConfig

_MOST_GB = 100_000
"""Memory above which a number is taken for one of bytes."""
FindPartitions = Callable[[ConfigSchema, list[str]], Mapping[str, int]]


def load_graph_spec(path: Path, assignments: Sequence[str] | None = None) -> GraphSpec:
    """Read and validate a graph spec.

    Raises:
        ConfigError: the file cannot be read or keys are wrong; the message names the file and every such key.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        advice = "; name a graph spec, a YAML file" if isinstance(error, IsADirectoryError) else ""
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{advice}") from None
    document = _document(GraphSpec, data, str(path), assignments or ())
    spec = _stopping_early(parse(GraphSpec, document, source=str(path)), document)
    # These are no rules of GraphSpec itself: imported lists hold nothing out, and stored runs must stay readable.
    if spec.resources.memory_gb > _MOST_GB:
        raise ConfigError(
            f"{path}: resources.memory_gb is {spec.resources.memory_gb:g}, which no machine has: it counts GB, not "
            "bytes; 8 means 8 GB"
        )
    if not spec.held_out_share:
        split = spec.eval.split
        raise ConfigError(
            f"{path}: eval.split is {split}, yet split.{split} is 0: no night could be evaluated; give split.{split} a "
            "share, or name the other one in eval.split"
        )
    check_entity_names(spec.model.entities, source=f"{path}: model")
    _check_destinations(spec, str(path))
    _warn(spec.model, str(path))
    return spec


def _check_destinations(spec: GraphSpec, source: str) -> None:
    """Refuse two exports to one folder, or of the same aliases.

    This is not a rule of GraphSpec, because stored runs must stay readable.
    """
    for one, two in combinations((export for export in spec.exports if export.is_sink), 2):
        if one.shares_aliases(two, spec.store, spec.collection):
            raise ConfigError(
                f"{source}: exports {one.name!r} and {two.name!r} would move the same aliases; give one of them "
                "options.collection, or disjoint types"
            )
    names: dict[str, str] = {}
    for export in spec.exports:
        place = export.resolve(spec.store, run=RUN, snapshot=SNAPSHOT).rstrip("/")
        if not export.is_sink and (other := names.setdefault(place, export.name)) != export.name:
            raise ConfigError(
                f"{source}: exports {other!r} and {export.name!r} have one destination, {place}, where the later one "
                "would remove the files of the other; give each a folder of its own"
            )


def _stopping_early(spec: GraphSpec, document: Mapping[str, Any]) -> GraphSpec:
    """Turn early stopping on, unless the file mentions it.

    Not where the valid split is what the gates judge by: the best of several epochs looks a little too good there.
    """
    train = document.get("train") or {}
    if "early_stopping" in train or not spec.split.valid or spec.eval.split == "valid" or spec.model.eval_fraction:
        return spec
    rule = {"early_stopping": EarlyStoppingRule()}
    return spec.model_copy(update={"train": spec.train.model_copy(update=rule)})


def load_config(
    data: bytes, *, source: str, overrides: Sequence[str] = (), partitions: FindPartitions | None = None
) -> ConfigSchema:
    """Read and validate a PBG config.

    Paths in it stay as written, relative ones to the working directory.

    Args:
        data: the document's bytes.
        source: its path or URL: the suffix distinguishes JSON, YAML and Python, and errors name it.
        overrides: ``key.path=value``, see ``pbg_tasks.config.overrides``.
        partitions: returns the numbers of partitions in place of ``num_partitions: auto``. It gets the config with 1 in
            their place, and the entity types with that word; None refuses the word.

    Raises:
        ConfigError: keys are wrong; the message names the file and every such key.
    """
    document = _document(ConfigSchema, data, source, overrides)
    auto = _auto_partitioned(document)
    if auto and partitions is not None:
        alone = parse(ConfigSchema, _partitioned(document, dict.fromkeys(auto, 1)), source=source)
        document = _partitioned(document, partitions(alone, auto))
    config = parse(ConfigSchema, document, source=source)
    check_entity_names(config.entities, source=source, hidden=True)
    _warn(config, source)
    return config


def _document(schema: type[Model], data: bytes, source: str, overrides: Sequence[str]) -> dict[str, Any]:
    found = parse_document(data, source=source)
    _check_kind(found, schema, source)
    document = modernize(found, schema, source=source)
    return override(document, overrides, source=source, schema=schema)


def _check_kind(document: Mapping[str, Any], schema: type[Model], source: str) -> None:
    """Refuse a graph spec where a PBG config belongs, and the reverse.

    Raises:
        ConfigError: the document is of the other kind; the message has the command for it.
    """
    if schema is ConfigSchema and is_graph_spec(document):
        raise ConfigError(
            f"{source}: a graph spec, not a PBG config; `pbg run {source}` trains it, and `pbg show {source}` names "
            f"its runs; other commands take a run, or the store, {document.get('store', '')}"
        )
    if schema is GraphSpec and "entities" in document and "model" not in document:
        raise ConfigError(
            f"{source}: a PBG config, not a graph spec; `pbg train {source}` trains it, and `pbg init` writes a graph "
            "spec for a folder of snapshots"
        )


def is_graph_spec(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a graph spec and no PBG config."""
    return "snapshots" in document and "entities" not in document


def _auto_partitioned(document: dict[str, Any]) -> list[str]:
    """Return the entity types whose number of partitions is ``auto``.

    The document is not validated yet.
    """
    entities = document.get("entities")
    listed = entities.items() if isinstance(entities, dict) else ()
    return [name for name, entity in listed if isinstance(entity, dict) and entity.get("num_partitions") == "auto"]


def _partitioned(document: dict[str, Any], partitions: Mapping[str, int]) -> dict[str, Any]:
    entities = {
        name: {**entity, "num_partitions": partitions[name]} if name in partitions else entity
        for name, entity in document["entities"].items()
    }
    return {**document, "entities": entities}


def _warn(config: ModelConfig, source: str) -> None:
    for warning in _warnings(config):
        note(f"warning: {source}: {warning}")


def _warnings(config: ModelConfig) -> Iterator[str]:
    if config.background_io:
        yield "background_io has no effect, as in PBG, which removed it"
    for name in config.entities:
        if name.startswith("_"):
            yield f"entities.{name}: readers that skip files with an underscore in front will not see exports of it"
    if config.verbose > 1:
        yield f"verbose: {config.verbose} has no effect: progress is always shown"
    if config.loss_fn == "logistic" and facts_of(config.comparator).normalized:
        yield f"loss_fn logistic on comparator {config.comparator} sees scores between -1 and 1 only; dot is usual"
