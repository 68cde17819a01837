"""Starting vectors from ``init_path``.

It names a checkpoint directory, or arrays with names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_directory
from pbg_tasks.checkpoint.preserve import MANIFEST
from pbg_tasks.checkpoint.reader import HEAD, VERSION_MIRROR
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.model import ModelState, model_file_name
from pbg_tasks.progress import say
from pbg_tasks.storage import open_store
from pbg_tasks.training.data.stored import StoredVectors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.storage import Store
    from pbg_tasks.training.data.named_arrays import NamedArrays
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table

_ADVICE = "a checkpoint starts the same entities only: give arrays with names as init_path instead"


def open_initial(
    config: ConfigSchema, scratch: Path, names: Callable[[PartitionKey], list[str]]
) -> CheckpointStart | NamedArrays | None:
    """Open the start that the config's ``init_path`` names.

    None is returned where it names none.

    Args:
        config: the types, partitions and dimensions of its entities are those that the training needs.
        scratch: local directory for downloads, which must exist as long as the result is used.
        names: returns a partition's names by offset; called only for arrays with names.

    Raises:
        ConfigError: the path has neither a checkpoint nor an array.
        InputError: an import there is not finished.
        NotFoundError: no version of the checkpoint is complete.
        FormatError: an object is damaged or does not fit.
    """
    if config.init_path is None:
        return None
    store, directory = open_store(config.init_path), scratch / "init"
    if _holds_checkpoint(store):
        return CheckpointStart(config, store, directory)
    from pbg_tasks.training.data.named_arrays import NamedArrays  # imports Arrow, 40 MB that other trainings do without

    return NamedArrays(config, store, directory, names)


def open_given(config: ConfigSchema, scratch: Path, names: Callable[[PartitionKey], list[str]]) -> NamedArrays | None:
    """Open the vectors that ``init_path`` has for new entities of frozen types.

    Such entities would keep a start from neighbours or at random for ever.

    Args:
        config: as of ``open_initial``.
        scratch: same.
        names: same.

    Returns:
        None where the path names a checkpoint or no array of such a type.

    Raises:
        InputError, FormatError: as of ``open_initial``.
    """
    if config.init_path is None or not config.frozen_types:
        return None
    store, directory = open_store(config.init_path), scratch / "init"
    if _holds_checkpoint(store):
        return None
    from pbg_tasks.training.data.named_arrays import NamedArrays, holds_array

    frozen = [entity for entity in config.frozen_types if holds_array(store, entity)]
    return NamedArrays(config, store, directory, names, types=frozen) if frozen else None


def _holds_checkpoint(store: Store) -> bool:
    if any(store.head(name) is not None for name in (HEAD, VERSION_MIRROR, MANIFEST)):
        return True
    return any(info.key.endswith(".h5") for start in ("embeddings_", "model.v") for info in store.list(start))


class CheckpointStart:
    """Start from a checkpoint directory of PBG or of this package.

    Its partitions must be those of the config.

    As in PBG, types and parameters that it lacks start as without it; unlike in PBG, this is logged.

    Args:
        config: the partitions that the training needs.
        store: rooted at the directory.
        scratch: local directory for downloads.

    Raises:
        FormatError: the directory is damaged, or has none of the types or another number of partitions.
    """

    def __init__(self, config: ConfigSchema, store: Store, scratch: Path) -> None:
        self._there = {info.key for info in store.list("embeddings_")} | {info.key for info in store.list("model.v")}
        self._entities = list(config.entities)
        files = open_directory(store, "", expect=self._names)
        self._known = self._check_partitions(config, files)
        self._stored = StoredVectors(files, scratch, grows=False, advice=_ADVICE)
        say(f"init_path: starting from version {files.version} in {files.url}")

    def _names(self, version: int) -> list[str]:
        """List the files that a version must have.

        These are the partitions below the highest that exists, of each type that exists, and the model file if it
        exists.
        """
        counts = {entity: self._partitions(entity, version) for entity in self._entities}
        names = [embeddings_file_name(name, part, version) for name, count in counts.items() for part in range(count)]
        model = model_file_name(version)
        return [*names, model] if model in self._there or not names else names

    def _partitions(self, entity: str, version: int) -> int:
        pattern = re.compile(rf"embeddings_{re.escape(entity)}_([0-9]+)\.v{version}\.h5")
        return max((int(match[1]) + 1 for name in self._there if (match := pattern.fullmatch(name))), default=0)

    def _check_partitions(self, config: ConfigSchema, files: CheckpointFiles) -> set[str]:
        known = set()
        for entity, schema in config.entities.items():
            count, wanted = self._partitions(entity, files.version), schema.num_partitions
            if count not in {0, wanted}:
                raise FormatError(
                    f"{files.url}: holds {count} partitions of {entity}, the config has {wanted}; {_ADVICE}"
                )
            if count:
                known.add(entity)
            else:
                say(f"init_path: {files.url} holds no {entity}: these start at random")
        if not known:
            raise FormatError(f"{files.url}: holds embeddings of none of the types {', '.join(config.entities)}")
        return known

    def fill(self, key: PartitionKey, table: Table) -> None:
        """Overwrite a partition's random start with stored rows and optimizer state.

        A type that the checkpoint lacks stays as it is.
        """
        if key.entity in self._known:
            self._stored.fill(key, table)

    def model(self, current: ModelState) -> ModelState:
        """Return the parameters with those of the checkpoint replaced.

        This is PBG's ``strict=False``.
        """
        stored = self._stored.model()
        return current if stored is None else _laid_over(current, stored, source=self._stored.files.url)


def _laid_over(current: ModelState, stored: ModelState, *, source: str) -> ModelState:
    for path, value in stored.params.items():
        wanted = current.params[path].shape if path in current.params else value.shape
        if value.shape != wanted:
            raise FormatError(f"{source}: model/{path} has shape {value.shape}, the config needs {wanted}; {_ADVICE}")
    missing, unused = current.params.keys() - stored.params.keys(), stored.params.keys() - current.params.keys()
    for paths, fate in ((missing, "are not there and start as usual"), (unused, "are not of this model: not used")):
        if paths:
            say(f"init_path: parameters {', '.join(sorted(paths))} {fate}")
    return ModelState(
        {path: stored.params.get(path, value) for path, value in current.params.items()},
        {path: stored.sums.get(path, value) for path, value in current.sums.items()},
    )
