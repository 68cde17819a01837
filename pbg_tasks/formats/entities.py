"""The entity path: how many entities a partition has, their names in order, and the relations' names (PBG 3.1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RELATION_NAMES = "dynamic_rel_names.json"
RELATION_COUNT = "dynamic_rel_count.txt"


def entity_count_file_name(entity: str, partition: int) -> str:
    """Return the file that holds a partition's number of entities."""
    return f"entity_count_{entity}_{partition}.txt"


def entity_names_file_name(entity: str, partition: int) -> str:
    """Return the file that holds a partition's names."""
    return f"entity_names_{entity}_{partition}.json"


def write_entity_count(directory: Path, entity: str, partition: int, count: int) -> None:
    """Write a partition's number of entities."""
    (directory / entity_count_file_name(entity, partition)).write_text(f"{count}\n", encoding="ascii")


def read_entity_count(directory: Path, entity: str, partition: int) -> int:
    """Read a partition's number of entities.

    Raises:
        FormatError: the file is missing or holds no number.
    """
    return _read_count(directory / entity_count_file_name(entity, partition))


def _read_count(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    if not text.isdigit():
        raise FormatError(f"{path}: expected a count, found {text[:40]!r}")
    return int(text)


def _write_names(path: Path, names: Iterable[str]) -> int:
    """Write a JSON list the way ``json.dump(..., indent=4)`` does, one name at a time; return how many."""
    count = 0
    with path.open("w", encoding="ascii") as file:
        for name in names:
            file.write("[\n    " if count == 0 else ",\n    ")
            file.write(json.dumps(name))
            count += 1
        file.write("\n]" if count else "[]")
    return count


def _read_names(path: Path) -> list[str]:
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FormatError(f"{path}: not a readable JSON list: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path}: expected a JSON list of strings")
    return names


def write_entity_names(directory: Path, entity: str, partition: int, names: Iterable[str]) -> int:
    """Write a partition's names in the order of their offsets; return how many there were."""
    return _write_names(directory / entity_names_file_name(entity, partition), names)


def read_entity_names(directory: Path, entity: str, partition: int, *, count: int | None = None) -> list[str]:
    """Read a partition's names.

    Raises:
        FormatError: not a list of strings, or not ``count`` of them.
    """
    path = directory / entity_names_file_name(entity, partition)
    names = _read_names(path)
    if count is not None and len(names) != count:
        raise FormatError(f"{path}: holds {len(names)} names for {count} entities")
    return names


def write_relation_names(directory: Path, names: list[str], *, dynamic: bool) -> None:
    """Write the relations' names in the order of their ids, and with dynamic relations their number."""
    _write_names(directory / RELATION_NAMES, names)
    if dynamic:
        (directory / RELATION_COUNT).write_text(f"{len(names)}\n", encoding="ascii")


def read_relation_names(directory: Path) -> list[str]:
    """Read the relations' names.

    Raises:
        FormatError: not a list of strings.
    """
    return _read_names(directory / RELATION_NAMES)


def read_relation_count(directory: Path) -> int:
    """Read the number of dynamic relations.

    Raises:
        FormatError: the file is missing or holds no number.
    """
    return _read_count(directory / RELATION_COUNT)
