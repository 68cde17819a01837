"""Outbox: a local folder in which an export or import is prepared.

No reader sees any of it before it is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError
from pbg_tasks.publish.exchange.manifest import MANIFEST, TypeRecord
from pbg_tasks.storage.names import check_key

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.publish.exchange.contents import EntityRows


class Outbox:
    """Files of one export, with their entity types.

    Args:
        folder: an empty local directory.

    Attributes:
        root: the directory.
        files: paths by name, which may hold slashes; in the order in which they are to appear.
        pieces: paths by name of files that the merge of an export's parts joins.
        types: record of each entity type.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.files: dict[str, Path] = {}
        self.pieces: dict[str, Path] = {}
        self.types: dict[str, TypeRecord] = {}

    def path(self, name: str) -> Path:
        """Return the path at which to write the file ``name``.

        Raises:
            ConfigError: no store could hold it, as of an entity type named ``..``; or it was given out before, so two
                entity types would share a file.
        """
        check_key(name)
        if name in self.files or name == MANIFEST:
            raise ConfigError(f"two files of this format would be named {name}: rename the entity type it comes from")
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.files[name] = path
        return path

    def adopt(self, folder: str) -> list[str]:
        """Add the files that were written into a folder below ``root``.

        Files with an underscore in front are to appear last.

        Returns:
            The names of its files.
        """
        found = [path for path in (self.root / folder).rglob("*") if path.is_file()]
        found.sort(key=lambda path: (path.name.startswith("_"), path))
        names = {path.relative_to(self.root).as_posix(): path for path in found}
        self.files |= names
        return list(names)

    def record(self, rows: EntityRows, *files: str) -> None:
        """Record that ``files`` hold all rows of a type."""
        self.types[rows.entity] = TypeRecord(rows=len(rows), dimension=rows.dimension, files=files)
