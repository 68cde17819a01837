"""Angel's output formats by the Java class that metadata and settings name: its own eight, and those of packages."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.angel.binary import BinaryFormat
from pbg_tasks.formats.angel.records import Format
from pbg_tasks.formats.angel.text import TextFormat
from pbg_tasks.plugins import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE = "com.tencent.angel.model.output.format."

FORMATS: dict[str, Format] = {
    "ValueBinaryRowFormat": BinaryFormat(has_columns=False),
    "ColIdValueBinaryRowFormat": BinaryFormat(),
    "RowIdColIdValueBinaryRowFormat": BinaryFormat(has_rows=True),
    "ValueTextRowFormat": TextFormat(has_columns=False),
    "ColIdValueTextRowFormat": TextFormat(),
    "RowIdColIdValueTextRowFormat": TextFormat(has_rows=True),
    "BinaryColumnFormat": BinaryFormat(by_column=True),
    "TextColumnFormat": TextFormat(by_column=True),
}
"""The formats of every Angel, by the class's name in its package."""

ANGEL_FORMATS = Kind("Angel output format", "pbg_tasks.angel_formats", tuple(FORMATS))

LAYERS = {
    "simpleinputlayer": "ColIdValueTextRowFormat",
    "embedding": "TextColumnFormat",
    "fclayer": "RowIdColIdValueTextRowFormat",
}
"""The layers of Angel's networks whose format is a setting, and what it is by default."""


def output_format(name: str) -> Format:
    """Return the format of a Java class; those of Angel's own package may be named without it.

    Raises:
        ConfigError: there is none, or the package that has it is at fault.
    """
    return FORMATS.get(name.removeprefix(PACKAGE)) or _installed(name)


def class_name(name: str) -> str:
    """Return a format's full name, as metadata has it.

    Raises:
        ConfigError: there is no such format.
    """
    output_format(name)
    return PACKAGE + name if name in FORMATS else name


def layer_format(settings: Mapping[str, str], layer: str) -> str:
    """Return the full name of a layer's format: the setting ``ml.<layer>.matrix.output.format`` or Angel's default.

    Args:
        settings: an Angel job's.
        layer: a key of ``LAYERS``.

    Raises:
        ConfigError: there is no such layer or format.
    """
    if layer not in LAYERS:
        raise ConfigError(f"layer {layer!r} has no format of its own; those that have: {', '.join(LAYERS)}")
    return class_name(settings.get(f"ml.{layer}.matrix.output.format", LAYERS[layer]))


@cache
def _installed(name: str) -> Format:
    return ANGEL_FORMATS.load(name, Format)  # type: ignore[type-abstract]
