"""Names that become parts of paths.

They are the names of graphs, channels, exports, entity types and parts of tasks. Relation names never become parts of
paths.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
NAME_RULE = "a name has up to 64 letters, digits, '-' and '_', and begins with a letter or digit"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME_PATTERN)]
"""Name of a graph, a channel or an export: part of object keys, and of the ids of DAGs and tasks."""

_NAME_BYTES = 200  # bytes; with PBG's prefix and suffix, a file's name then has at most 255
_SIGNS = '*?[]{}<>|"%#'
_ALLOWED = re.compile(rf"[^._{re.escape(_SIGNS)}][^{re.escape(_SIGNS)}]*")


def check_name(name: str, kind: str) -> None:
    """Refuse a name that cannot be part of a key.

    Raises:
        ConfigError: the message names it and the characters that it may have.
    """
    if not re.fullmatch(_NAME, name):
        raise ConfigError(f"{kind} {name!r}: {NAME_RULE}")


def part_name(task: str, part: str) -> str:
    """Return the name of the result of part ``i/n`` of a task."""
    return f"{task}-{part.replace('/', '-of-')}"


def is_part_of(task: str, name: str) -> bool:
    """Return whether a name is that of a part of a task."""
    return re.fullmatch(rf"{re.escape(task)}-[0-9]+-of-[0-9]+", name) is not None


def check_entity_name(name: str) -> str:
    """Return an entity type's name if files can have it.

    It must be possible as a part of a file's name, on a disk and in S3. Stored configs have to fulfil this rule alone,
    so that a model trained under any such name stays readable.

    Raises:
        ValueError: it cannot.
    """
    if not name.isprintable() or name != name.strip() or not name or "/" in name or "\\" in name:
        raise ValueError(
            f"{name!r} cannot name an entity type: it becomes part of file names, so no slash, backslash or control "
            "character, nothing empty, no space at an end"
        )
    if len(name.encode()) > _NAME_BYTES:
        raise ValueError(f"{name[:20]!r}... cannot name an entity type: it has more than {_NAME_BYTES} bytes")
    return name


EntityName = Annotated[str, AfterValidator(check_entity_name)]


def unsafe_name(name: str, *, hidden: bool = False) -> str | None:
    """Return why an entity type cannot have a name.

    The check is for types of a new graph. The reason includes the remedy; None is returned where the name is fine.
    Exports make files and folders of the name alone. A dot or an underscore in front hides those from other readers, or
    leads to another folder; wildcards, and characters with a meaning in file systems and URLs, make them unreadable
    elsewhere.

    Args:
        name: of the entity type.
        hidden: whether an underscore in front is fine: training and evaluation work with it.
    """
    if _ALLOWED.fullmatch(f"x{name}" if hidden and name.startswith("_") else name):
        return None
    held = " ".join(sign for sign in _SIGNS if sign in name)
    reason = f"{held} is a wildcard or a sign of paths and URLs" if held else f"{name[:1]!r} in front hides files"
    return (
        f"{name!r} cannot name an entity type, for exports make files of its name: {reason}; rename it, and what is "
        'stored under it as docs/pbg-config.md describes in "Names of entity types"'
    )


def check_entity_names(names: Iterable[str], *, source: str, hidden: bool = False) -> None:
    """Refuse names that entity types of a new graph cannot have.

    Raises:
        ConfigError: there are such names; the message names ``source`` and the key of each.
    """
    problems = [f"entities.{name}: {why}" for name in names if (why := unsafe_name(name, hidden=hidden)) is not None]
    if problems:
        raise ConfigError(f"{source}: {'; '.join(problems)}")
