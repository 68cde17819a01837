"""``export tsv``: a checkpoint's embeddings and operators as PBG's text."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.errors import ConfigError, ConflictError, PbgError
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.exchange import Outbox, writer
from pbg_tasks.storage import FinalFile, open_file, tidy
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.exchange.opened import finder, load_contents, named_in_store
from pbg_tasks.tasks.model_source import load_newest

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.storage import Store


class ExportedTexts(TypedDict):
    """Figures of an export to PBG's two texts."""

    task: str
    checkpoint: str
    version: int
    entities: int
    entities_output: str
    relation_parameters: JsonValue
    relation_types_output: str
    seconds: float


def export_directory(
    config: ConfigSchema, *, entities_output: str, relation_types_output: str, overwrite: bool = False
) -> ExportedTexts:
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
    started = time.monotonic()
    targets = [open_file(output) for output in (entities_output, relation_types_output)]
    if len({f"{store.url}/{name}" for store, name in targets}) < len(targets):
        raise ConfigError(f"{entities_output}: embeddings and operators need a file each")
    for store, name in targets:
        if not overwrite and store.head(name) is not None:
            raise ConflictError(f"{store.url}/{name}: exists; remove it, name another, or give --overwrite")
    with Scratch() as scratch:
        progress, outbox = Progress("export", unit="rows"), Outbox(scratch.path / "outbox")
        load = partial(load_contents, scratch=scratch.path, types=(), on_rows=progress.advance)
        found, contents = load_newest(finder(config, scratch.path, None, None), load)
        progress.total = contents.rows
        with progress, named_in_store(found, scratch.path), disk_errors(scratch.path):
            measured = writer("tsv", ExportOptions())(contents, outbox)
        _put_both(targets, list(outbox.files.values()), overwrite=overwrite)
    seconds = time.monotonic() - started
    say(f"export: finished in {human_seconds(seconds)}")
    return {
        "task": "export",
        "checkpoint": found.checkpoint.url,
        "version": found.version,
        "entities": contents.rows,
        "entities_output": entities_output,
        "relation_parameters": measured["relation_parameters"],
        "relation_types_output": relation_types_output,
        "seconds": round(seconds, 3),
    }


def _put_both(targets: list[tuple[Store, str]], texts: list[Path], *, overwrite: bool) -> None:
    """Put both texts in place, or none that was not there before."""
    (first, first_name), (second, second_name) = targets
    try:
        _put(first, first_name, texts[0], overwrite=overwrite)
        try:
            _put(second, second_name, texts[1], overwrite=overwrite)
        except PbgError:
            if not overwrite:
                first.delete(first_name)
            raise
    finally:
        for store in (first, second):
            tidy(store)


def _put(store: Store, name: str, text: Path, *, overwrite: bool) -> None:
    if overwrite:
        store.put(name, FinalFile(text))
    else:
        store.put_new(name, FinalFile(text))
