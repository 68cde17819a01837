"""Map of a run's embedding, made from a sample of vectors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config.comparators import facts_of
from pbg_tasks.config.results import PreserveResult
from pbg_tasks.errors import NotFoundError, PbgError
from pbg_tasks.formats.directory import read_config
from pbg_tasks.formats.embeddings import embeddings_file_name, map_embeddings
from pbg_tasks.formats.entities import entity_names_file_name, read_entity_names
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.model.parameters import global_path
from pbg_tasks.progress import human_count, say
from pbg_tasks.report.embedding_map import map_document
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.report.embedding_map import MapDocument, Sampled
    from pbg_tasks.tasks.context import RunContext

MAP = "report/map.json"
POINTS = 1500
"""Entities of a map, of all types together."""
FEWEST = 100
"""Least number of a type, where it has so many."""
BYTES = 128 << 20
"""Files of one release that a map reads; of a larger one it shows a partition of each type that fits."""


def write_map(run: RunContext) -> None:
    """Store the map of a run that has kept vectors.

    A night is as good without its map, so what keeps it from being made is only reported.
    """
    try:
        found = _made(run)
    except PbgError as error:
        say(f"warning: no map of the embedding: {error}")
        return
    if found is not None:
        run.store.put(run.key(MAP), json.dumps(found).encode())


def read_map(run: RunContext) -> MapDocument | None:
    """Return the stored map of a run; None without a whole one."""
    try:
        found = json.loads(run.store.get(run.key(MAP)).data)
    except (NotFoundError, ValueError):
        return None
    return found if _is_map(found) else None


def _is_map(found: Any) -> TypeGuard[MapDocument]:  # noqa: ANN401 - any JSON value
    if not isinstance(found, dict) or found.get("format") != 1 or not isinstance(found.get("types"), dict):
        return False
    points = [point for kind in found["types"].values() if isinstance(kind, list) for point in kind]
    return (
        all(isinstance(kind, list) for kind in found["types"].values())
        and isinstance(found.get("shown"), float | int)
        and isinstance(found.get("release"), int | None)
        and isinstance(found.get("left_out", []), list)
        and all(isinstance(point, dict) and isinstance(point.get("name"), str) for point in points)
        and all(_is_place(point.get("at")) for point in points)
        and all("before" in point and (point["before"] is None or _is_place(point["before"])) for point in points)
    )


def _is_place(found: object) -> bool:
    return isinstance(found, list) and len(found) == 2 and all(isinstance(each, float | int) for each in found)  # noqa: PLR2004 - x and y


def _made(run: RunContext) -> MapDocument | None:
    preserved = run.find(PreserveResult)
    if preserved is None:
        return None
    files = open_preserved(run.store, preserved.directory, expected_sha256=preserved.manifest_sha256)
    previous = run.spec.previous
    if previous is not None and not (previous.keep_ids and previous.warm_start):  # else in another space
        previous = None
    with Scratch() as scratch:
        now, then = scratch.path / "now", scratch.path / "then"
        now.mkdir()
        then.mkdir()
        earlier = None
        if previous is not None:
            try:
                earlier = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
            except NotFoundError:  # collected
                previous = None
        samples, left_out = _samples(files, earlier, now, then)
        config = read_config(files.fetch("config.json", now).read_bytes(), source=files.url)
        normalized = facts_of(config.comparator).normalized
        release = previous.seq if previous is not None else None
        if not samples and not left_out:
            return None
        return {**map_document(samples, normalized=normalized, release=release), "left_out": left_out}


def _samples(
    files: VerifiedFiles, earlier: VerifiedFiles | None, now: Path, then: Path
) -> tuple[dict[str, Sampled], list[str]]:
    """Return samples by type, and the types too large for one."""
    config = read_config(files.fetch("config.json", now).read_bytes(), source=files.url)
    kinds = [kind for kind in config.entities if config.entity_dimension(kind) == config.dimension]
    found: dict[str, Sampled] = {}
    left_out: list[str] = []
    hidden = None
    if EXPIRED in files.names:
        hidden = EntitySet.from_bytes(files.fetch(EXPIRED, now).read_bytes(), source=f"{files.url}/{EXPIRED}")
    budget = BYTES
    for kind in kinds:
        names, vectors = entity_names_file_name(kind, 0), embeddings_file_name(kind, 0, files.version)
        if not {names, vectors} <= set(files.names):
            continue
        size = sum(files.records[name].size for name in (names, vectors))
        if size > budget:
            say(
                f"map: {kind} is left out: its partition 0 takes {human_count(size)}B, more than the "
                f"{human_count(budget)}B left of what a map reads"
            )
            left_out.append(kind)
            continue
        budget -= size
        files.fetch_all([names, vectors], now)
        rows = map_embeddings(now / vectors, dimension=config.dimension)
        shown = _shown(len(rows), hidden, kind)
        if not len(shown):
            continue
        share = max(FEWEST, POINTS // len(kinds))
        places = shown[np.unique(np.linspace(0, len(shown) - 1, min(share, len(shown))).astype(np.int64))]
        listed = read_entity_names(now, kind, 0, count=len(rows))
        before = None
        if earlier is not None:
            before = _before(earlier, kind, places, config, then)
        found[kind] = {
            "names": [listed[int(place)] for place in places],
            "rows": _compared(np.asarray(rows[places], np.float32) + _global(files, kind, config, now), config),
            "before": before,
            "entities": len(shown) * config.entities[kind].num_partitions,
        }
    return found, left_out


def _shown(count: int, hidden: EntitySet | None, kind: str) -> np.ndarray:
    """Return the rows of partition 0 whose entities are not hidden."""
    shown = np.ones(count, bool)
    if hidden is not None and kind in hidden.partition:
        shown[hidden.offset[kind][hidden.partition[kind] == 0]] = False
    return np.flatnonzero(shown)


def _global(files: VerifiedFiles, kind: str, config: ConfigSchema, folder: Path) -> np.ndarray | float:
    """Return a type's global embedding; 0 where the model has none."""
    if not config.global_emb:
        return 0.0
    return read_model(files.fetch(model_file_name(files.version), folder)).params.get(global_path(kind), 0.0)


def _before(
    files: VerifiedFiles, kind: str, places: np.ndarray, config: ConfigSchema, folder: Path
) -> np.ndarray | None:
    """Return the rows of the release before, NaN where it has none.

    Ids stay, so an entity has the same row in both.
    """
    vectors = embeddings_file_name(kind, 0, files.version)
    if vectors not in files.names or files.records[vectors].size > BYTES:
        return None
    rows = map_embeddings(files.fetch(vectors, folder), dimension=config.dimension)
    found = np.full((len(places), config.dimension), np.nan, np.float32)
    known = places < len(rows)
    found[known] = rows[places[known]] + _global(files, kind, config, folder)
    return _compared(found, config)


def _compared(rows: np.ndarray, config: ConfigSchema) -> np.ndarray:
    """Return vectors without their bias, as neighbours are compared."""
    found: np.ndarray = rows[:, int(config.bias) :]
    return found
