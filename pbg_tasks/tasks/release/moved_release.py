"""A release without a training of its own, from another model's files.

Each row goes to the place of its entity's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.preserve import preserve_files
from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import digest
from pbg_tasks.config.contract import Contract
from pbg_tasks.config.run import id_layout, vector_space
from pbg_tasks.formats.directory import config_bytes
from pbg_tasks.formats.embeddings import embeddings_file_name, write_embeddings
from pbg_tasks.formats.entities import write_relation_names
from pbg_tasks.formats.metadata import IterationInfo, read_iteration
from pbg_tasks.formats.model import model_file_name, write_model
from pbg_tasks.prepare.moved_rows import MovedRows
from pbg_tasks.prepare.reassignment import Reassignment
from pbg_tasks.progress import human_count, say
from pbg_tasks.publish.gc_holds import hold
from pbg_tasks.storage.staging import named, sha256_file

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.checkpoint import PreservedManifest
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.model_source import Source

_UNKNOWN = IterationInfo(0, 0, 1, 0, "", 1, 0)


@dataclass(frozen=True, slots=True)
class Moved:
    """Figures of a model whose rows were moved.

    Attributes:
        config: of the release; its directory holds everything.
        version: checkpoint version the file names carry.
        counts: rows of each partition, by type.
        dropped: rows that have no place any more, by type.
    """

    config: ConfigSchema
    version: int
    counts: dict[str, list[int]]
    dropped: dict[str, int]

    @property
    def total(self) -> int:
        """Rows of all types."""
        return sum(map(sum, self.counts.values()))


def move_model(
    connection: duckdb.DuckDBPyConnection,
    source: Source,
    config: ConfigSchema,
    ids: Path,
    *,
    out: Path,
    scratch: Path,
    nights: int | None = None,
) -> Moved:
    """Write the files of a release.

    They are ids, names, embeddings with optimizer sums, and shared parameters.

    Args:
        connection: for the work.
        source: the model as it is.
        config: its config as it will be: other ``num_partitions``, nothing else that the vectors depend on.
        ids: directory with the present ids of every type.
        out: directory for the files.
        scratch: local directory.
        nights: leave out entities that so many nights or more have not seen; None: keep all.

    Raises:
        FormatError: files are damaged or do not belong together.
    """
    config = config.model_copy(update={"entity_path": ".", "checkpoint_path": ".", "edge_paths": ()})
    version = max(1, source.version)
    relations = source.relations(scratch)
    stored = source.model(scratch, len(relations))
    (path,) = source.checkpoint.bring([model_file_name(source.version)], scratch)
    with named(path, f"{source.checkpoint.url}/{path.name}"):
        iteration = read_iteration(path) or _UNKNOWN
    write_model(out / model_file_name(version), stored, config=config, iteration=iteration)
    write_relation_names(out, relations, dynamic=config.dynamic_relations)
    moved = Moved(config, version, {}, {})
    for entity, schema in config.entities.items():
        reassignment = Reassignment(connection, entity, schema.num_partitions, ids, nights=nights)
        moved.counts[entity] = reassignment.write(out)
        moved.dropped[entity] = reassignment.dropped
        rows = _moved_rows(source, entity, reassignment, moved.counts[entity], scratch)
        for part, (embeddings, row_sums) in enumerate(zip(rows.embeddings, rows.sums, strict=True)):
            write_embeddings(
                out / embeddings_file_name(entity, part, version),
                embeddings,
                row_sums if rows.has_sums else None,
                lr=config.lr,
                iteration=iteration,
                config=config,
            )
        say(f"{entity}: {human_count(sum(moved.counts[entity]))} rows in {schema.num_partitions} partitions")
    (out / "config.json").write_bytes(config_bytes(config))
    return moved


def _moved_rows(source: Source, entity: str, reassignment: Reassignment, counts: list[int], scratch: Path) -> MovedRows:
    """Move the rows of a type, one present partition at a time."""
    rows = MovedRows(counts, source.config.entity_dimension(entity), scratch, f"moved-{entity}")
    for part in range(source.config.entities[entity].num_partitions):
        name = embeddings_file_name(entity, part, source.version)
        (path,) = source.checkpoint.bring([name], scratch)
        with named(path, f"{source.checkpoint.url}/{name}"):
            rows.take(path, reassignment.places(part))
        if path.is_relative_to(scratch):
            path.unlink()
    rows.check(source.checkpoint.url)
    return rows


@dataclass(frozen=True, slots=True)
class Stored:
    """A release's directory in the store.

    Attributes:
        run: id of the run it stands for, which follows from its bytes.
        directory: its key.
        manifest: names its files.
    """

    run: str
    directory: str
    manifest: PreservedManifest


def store_release(
    store: Store, moved: Moved, out: Path, *, snapshot: str, epochs: int, continues: str | None = None
) -> Stored:
    """Upload the files below ``out``.

    The same files go to the same place, so a second try finds them there.

    Args:
        store: the graph's.
        moved: figures of the files.
        out: their local directory.
        snapshot: key of the release.
        epochs: number of finished epochs.
        continues: id of the space that the vectors are in; None: the release begins one.
    """
    files = {path.name: path for path in sorted(out.iterdir())}
    run = f"{snapshot}-{digest({name: sha256_file(path) for name, path in files.items()})[:12]}"
    hold(store, run)
    directory = f"runs/{run}/{RunLayout.release}"
    space = digest({"space": vector_space(moved.config), "layout": id_layout(moved.config)})
    contract = Contract.of(moved.config, continues or run)
    manifest = preserve_files(
        store, files, directory, spec=space, version=moved.version, epochs=epochs, contract=contract
    )
    return Stored(run, directory, manifest)
