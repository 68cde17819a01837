"""Angel's output formats by the Java class that writes them.

Metadata and settings name the class. Eight formats are Angel's own; installed packages may add others.
"""

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
"""Formats of every Angel version, by the class's name in Angel's package."""

ANGEL_FORMATS = Kind("Angel output format", "pbg_tasks.angel_formats", tuple(FORMATS))

LAYERS = {
    "simpleinputlayer": "ColIdValueTextRowFormat",
    "embedding": "TextColumnFormat",
    "fclayer": "RowIdColIdValueTextRowFormat",
}
"""Default formats of the layers whose format is a setting in Angel's networks."""


def output_format(name: str) -> Format:
    """Return the format of a Java class.

    Classes of Angel's own package may be named without the package.

    Raises:
        ConfigError: there is no such format, or the package that adds it is at fault.
    """
    return FORMATS.get(name.removeprefix(PACKAGE)) or _installed(name)


def class_name(name: str) -> str:
    """Return the full name of a format's class, as in metadata.

    Raises:
        ConfigError: there is no such format.
    """
    output_format(name)
    return PACKAGE + name if name in FORMATS else name


def layer_format(settings: Mapping[str, str], layer: str) -> str:
    """Return the full name of the class of a layer's format.

    It is that of the setting ``ml.<layer>.matrix.output.format``, or Angel's default.

    Args:
        settings: of an Angel job.
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
