"""Numbers in the environment variables of a launched process."""

from __future__ import annotations

import os

from pbg_tasks.errors import ConfigError


def number_of(name: str) -> int | None:
    """Return the number in a variable; None where it is not set.

    Raises:
        ConfigError: the value is no number.
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name} is {text!r} instead of a number")
    return int(text)
