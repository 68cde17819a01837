"""``export tsv``: a checkpoint's embeddings and operators as PBG's text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import checkpoint_names, open_directory
from pbg_tasks.config.support import check_supported
from pbg_tasks.errors import ConfigError, ConflictError, PbgError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.tsv import global_embedding, write_embeddings_tsv, write_relations_tsv
from pbg_tasks.storage import FinalFile, open_file, open_store
from pbg_tasks.storage.staging import Scratch, named
from pbg_tasks.tasks.directory.dataset import EntityPath, stored_model
from pbg_tasks.train.data.partitions import partition_keys

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.results import Result
    from pbg_tasks.storage import Store


def export_directory(
    config: ConfigSchema, *, entities_output: str, relation_types_output: str, overwrite: bool = False
) -> Result:
    """Write the newest version of a checkpoint as text.

    Args:
        config: names the checkpoint and the entities.
        entities_output: text of embeddings, local or ``s3://``.
        relation_types_output: text of operators' parameters; empty when no operator has any.
        overwrite: whether outputs that exist are replaced.

    Raises:
        ConfigError: the outputs are one place.
        ConflictError: an output exists.
        NotFoundError: entities, names or the checkpoint are missing.
        FormatError: a file is damaged, or a name cannot be written.
    """
    check_supported(config, source="config")
    started = time.monotonic()
    targets = [open_file(output) for output in (entities_output, relation_types_output)]
    if len({f"{store.url}/{name}" for store, name in targets}) < len(targets):
        raise ConfigError(f"{entities_output}: embeddings and operators need a file each")
    for store, name in targets:
        if not overwrite and store.head(name) is not None:
            raise ConflictError(f"{store.url}/{name}: exists; remove it, name another, or give --overwrite")
    with Scratch() as scratch:
        entities = EntityPath(config, scratch.path)
        files = open_directory(open_store(config.checkpoint_path), "", expect=checkpoint_names(config))
        params = stored_model(config, files, entities, scratch.path).params
        texts = [scratch.path / "entities.tsv", scratch.path / "relations.tsv"]
        total = sum(entities.counts.values())
        with (
            texts[0].open("wb") as out,
            Progress("export", total=total, unit="rows") as progress,
        ):
            for key in partition_keys(config):
                name = embeddings_file_name(*key, files.version)
                path, names = files.fetch(name, scratch.path), entities.entity_names(key)
                with named(path, f"{files.url}/{name}"):
                    write_embeddings_tsv(
                        out,
                        path,
                        names,
                        dimension=config.entity_dimension(key.entity),
                        added=global_embedding(config, params, key.entity),
                        on_rows=progress.advance,
                    )
                path.unlink()
        with texts[1].open("wb") as out:
            lines = write_relations_tsv(out, config, entities.relation_names(), params)
        _put_both(targets, texts, overwrite=overwrite)
    seconds = time.monotonic() - started
    say(f"export: finished in {human_seconds(seconds)}")
    return {
        "task": "export",
        "checkpoint": files.url,
        "version": files.version,
        "entities": total,
        "entities_output": entities_output,
        "relation_parameters": lines,
        "relation_types_output": relation_types_output,
        "seconds": round(seconds, 3),
    }


def _put_both(targets: list[tuple[Store, str]], texts: list[Path], *, overwrite: bool) -> None:
    """Put both texts in place, or none that was not there before."""
    (first, first_name), (second, second_name) = targets
    _put(first, first_name, texts[0], overwrite=overwrite)
    try:
        _put(second, second_name, texts[1], overwrite=overwrite)
    except PbgError:
        if not overwrite:
            first.delete(first_name)
        raise


def _put(store: Store, name: str, text: Path, *, overwrite: bool) -> None:
    if overwrite:
        store.put(name, FinalFile(text))
    else:
        store.put_new(name, FinalFile(text))
