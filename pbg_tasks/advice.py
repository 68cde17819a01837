"""Advised commands, with the graph spec that the command was given."""

from __future__ import annotations

import re
import shlex
from contextvars import ContextVar
from typing import TypeVar, cast

UNNAMED = "SPEC"
"""Word in place of the graph spec's file, for rooms that do not know it and for texts that are stored."""
_EXPLAINED = f"{UNNAMED} stands for the graph's spec, a YAML file"
T = TypeVar("T")
_SPEC: ContextVar[str] = ContextVar("spec", default=UNNAMED)
_ADVISED = re.compile(rf"(`pbg [a-z-]+ ){UNNAMED}\b")


def name_spec(path: object) -> None:
    """Note the graph spec that this command was given."""
    _SPEC.set(shlex.quote(str(path)))


def spec_name() -> str:
    """Return the graph spec as advised commands name it."""
    return _SPEC.get()


def spec_note() -> str:
    """Return the explanation of the word for the spec, where needed."""
    return f" {_EXPLAINED}." if spec_name() == UNNAMED else ""


def way_to(channel: str, release: int) -> str:
    """Return the command that moves a channel to a release.

    It names the channel, since readers may follow another one.
    """
    return f"`pbg rollback {UNNAMED} {release} --channel {channel}`"


def with_spec(text: str) -> str:
    """Return a text whose advised commands name the graph spec."""
    return _ADVISED.sub(lambda found: f"{found[1]}{_SPEC.get()}", text)


def with_spec_throughout(value: T) -> T:
    """Return a JSON value whose texts name the graph spec."""
    if isinstance(value, str):
        return cast("T", with_spec(value))
    if isinstance(value, dict):
        return cast("T", {key: with_spec_throughout(each) for key, each in value.items()})
    return cast("T", [with_spec_throughout(each) for each in value]) if isinstance(value, list) else value


def explained(text: str) -> str:
    """Return a text that explains its word for the spec.

    It is unchanged where no command is advised, or the spec's file is known.
    """
    return f"{text}\n\n{_EXPLAINED}" if _ADVISED.search(text) else text
