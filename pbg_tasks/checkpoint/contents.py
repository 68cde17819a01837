"""Contents of a checkpoint directory, known by its file names alone.

They are compared with the files that a version must have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.preserve import MANIFEST
from pbg_tasks.checkpoint.reader import VERSION_MIRROR, location
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.names import embeddings_file_name, model_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.storage import Store

Names = Callable[[int], list[str]]
"""Function that returns the names of the files that a version must have, by its number."""

_DATA = re.compile(r"(?:embeddings_[^/]+_[0-9]+|model)\.v([0-9]{1,18})\.h5")
_SNAPSHOT = re.compile(r"epoch_[0-9]+")
_SHOWN = 5


def checkpoint_names(config: ModelConfig) -> Names:
    """Return the function that names the files of a version.

    A version trained with ``config`` has every partition of every type, and the model.
    """

    def names(version: int) -> list[str]:
        partitions = [
            embeddings_file_name(entity, partition, version)
            for entity, schema in config.entities.items()
            for partition in range(schema.num_partitions)
        ]
        return [*partitions, model_file_name(version)]

    return names


def check_rows(source: str, rows: int, *, entity: str, partition: int, count: int, advice: str = "") -> None:
    """Compare the rows of a partition's embeddings with its number of entities.

    Args:
        source: the embeddings' file.
        rows: number of its rows.
        entity: type.
        partition: of the type.
        count: number of entities, from the entity path.
        advice: what to do about a difference, in place of the general advice.

    Raises:
        FormatError: they differ.
    """
    if rows != count:
        raise FormatError(
            f"{source}: holds {rows} rows, but entity_count_{entity}_{partition}.txt of entity_path says {count}; "
            + (advice or "the two belong to different imports: use the entity_path it was trained with")
        )


class Contents:
    """Files of a checkpoint directory, listed once, at the first use.

    Args:
        store: of the directory.
        prefix: its key.
        expect: names the files that make a version whole.
    """

    def __init__(self, store: Store, prefix: str, expect: Names) -> None:
        self._store, self._prefix = store, prefix
        self._expect = expect

    @property
    def url(self) -> str:
        """URL of the directory, for messages."""
        return location(self._store, self._prefix)

    @cached_property
    def _listed(self) -> list[str]:
        start = f"{self._prefix}/" if self._prefix else ""
        return [info.key.removeprefix(start) for info in self._store.list(start)]

    @cached_property
    def versions(self) -> Mapping[int, set[str]]:
        """Names of the stored embeddings and models, by version."""
        found: dict[int, set[str]] = {}
        for name in self._listed:
            if match := _DATA.fullmatch(name):
                found.setdefault(int(match[1]), set()).add(name)
        return dict(sorted(found.items()))

    def missing(self, version: int) -> list[str]:
        """Return the names of the files that a version lacks."""
        there = self.versions.get(version, set())
        return [name for name in self._expect(version) if name not in there]

    def linked(self) -> set[str]:
        """Return the files to which snapshots preserved by PBG link.

        PBG preserves by links, this package by copies, which have a manifest.
        """
        snapshots: dict[str, set[str]] = {}
        for name in self._listed:
            directory, slash, file = name.partition("/")
            if slash and _SNAPSHOT.fullmatch(directory):
                snapshots.setdefault(directory, set()).add(file)
        return set().union(*(files for files in snapshots.values() if MANIFEST not in files))

    def incomplete(self, version: int) -> FormatError:
        """Return the error for a version that lacks files."""
        missing = self.missing(version)
        if version in self.versions:
            what, mend = f"version {version} lacks {_some(missing)}", "restore what is missing, or "
        else:
            what, mend = f"{VERSION_MIRROR} names version {version}, of which no file is there", ""
        hint = ""
        if _SNAPSHOT.fullmatch(self.url.rpartition("/")[2]):
            hint = " (PBG's preserved snapshots are links into the directory above and break when either is moved)"
        return FormatError(
            f"{self.url}: {what}; {self.summary()}; {mend}put the number of a whole version into {VERSION_MIRROR}{hint}"
        )

    def summary(self) -> str:
        """Return a text with the versions and whether each is whole."""
        if not self.versions:
            return "there are no versions"
        return "there are " + ", ".join(self._describe(version) for version in self.versions)

    def _describe(self, version: int) -> str:
        wanted, missing = len(self._expect(version)), len(self.missing(version))
        return f"version {version} ({f'{wanted - missing} of {wanted} files' if missing else 'whole'})"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
