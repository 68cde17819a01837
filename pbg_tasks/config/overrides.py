"""Changes of single keys of a config from outside: ``key.path=value``.

A path is made of keys, indices of lists and names, with dots between them. A name that has dots itself is put in quotes
(``entities."my.type".num_partitions``), unless the config has it already: the longest match wins.
"""

from __future__ import annotations

import copy
import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.documents import parse_yaml
from pbg_tasks.config.legacy import spelling
from pbg_tasks.config.shape import Place, holds_text, holds_texts, model_at, within
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEGMENT = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^.="']+))(?=[.=]|$)""")
_NULLS = {"null", "Null", "NULL", "~"}


@dataclass(frozen=True, slots=True)
class _Segment:
    text: str
    quoted: bool


def override(data: dict[str, Any], assignments: Sequence[str], *, source: str, schema: Place = Any) -> dict[str, Any]:
    """Return a copy of ``data`` with ``key.path=value`` applied, in order.

    The first ``=`` after the path separates path and value. ``null`` is None. For a key that holds text the value is
    the text itself (quotes around all of it are removed), for a list of texts ``a,b`` or ``[a, b]``, else YAML.

    Args:
        data: content of a document.
        assignments: the changes.
        source: name of the document in errors.
        schema: the model of the document; without it, every value is YAML.

    Raises:
        ConfigError: an assignment is not of this form, or its path leads through a value without keys.
    """
    result = dict(data)
    for assignment in assignments:
        where = f"{source}: override {assignment!r}"
        segments, text = _split(assignment, where)
        if text is None:
            raise ConfigError(f"{where} is not of the form key.path=value")
        _assign(result, schema, segments, text, where)
    return result


def find(data: dict[str, Any], path: str, *, source: str, schema: Place = Any) -> Any:  # noqa: ANN401 - any value of a document
    """Return the value at a path.

    Raises:
        ConfigError: there is none; the message names the nearest key.
    """
    where = f"{source}: {path!r}"
    segments, text = _split(path, where)
    if text is not None:
        raise ConfigError(f"{where} is not of the form key.path")
    found: Any = data
    place = schema
    while segments:
        key, segments = _step(found, place, segments, where)
        if isinstance(found, dict) and key not in found:
            near = difflib.get_close_matches(str(key), found, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(found)}"
            raise ConfigError(f"{where}: there is no {key!r}; {hint}")
        found, place = found[key], within(place, key)
    return found


def _split(assignment: str, where: str) -> tuple[list[_Segment], str | None]:
    """Return the segments of a path, and the text after its ``=``.

    The text is None where there is no ``=``.
    """
    segments: list[_Segment] = []
    position = 0
    while True:
        match = _SEGMENT.match(assignment, position)
        if match is None:
            raise ConfigError(
                f"{where}: the path ends or breaks at character {position + 1}: {assignment[position:]!r}"
            )
        quoted = match[3] is None
        segments.append(_Segment((match[1] or match[2] or "") if quoted else match[3], quoted))
        position = match.end() + 1
        if match.end() == len(assignment):
            return segments, None
        if assignment[match.end()] == "=":
            return segments, assignment[position:]


def _assign(root: dict[str, Any], schema: Place, segments: list[_Segment], text: str, where: str) -> None:
    """Set one value at a path.

    Every container on the way is copied, because a document may hold one container in several places.
    """
    target: Any = root
    place = schema
    while True:
        key, segments = _step(target, place, segments, where)
        place = within(place, key)
        if not segments:
            target[key] = _value(text, place, where)
            return
        target[key] = copy.copy(target.get(key, {}) if isinstance(target, dict) else target[key])
        target = target[key]


def _step(target: Any, place: Place, segments: list[_Segment], where: str) -> tuple[Any, list[_Segment]]:  # noqa: ANN401 - any value of a document
    """Return the next key or index, and the rest of the path."""
    first = segments[0].text
    if isinstance(target, list):
        if first in map(str, range(len(target))):
            return int(first), segments[1:]
        raise ConfigError(f"{where}: {first!r} is no index of a list of {len(target)}, counted from 0")
    if not isinstance(target, dict):
        raise ConfigError(f"{where}: {first!r} leads nowhere, what is before it holds {target!r}")
    model = model_at(place)
    if model is not None:
        return spelling(model, first), segments[1:]
    plain = next((count for count, segment in enumerate(segments) if segment.quoted), len(segments))
    for count in range(plain, 1, -1):
        joined = ".".join(segment.text for segment in segments[:count])
        if joined in target:
            return joined, segments[count:]
    return first, segments[1:]


def _value(text: str, place: Place, where: str) -> Any:  # noqa: ANN401 - any value of a document
    if text.strip() in _NULLS:
        return None
    if holds_text(place):
        return parse_yaml(text, source=where) if text[:1] in {'"', "'"} else text
    if holds_texts(place) and not text.startswith("["):
        return [part.strip() for part in text.split(",")] if text else []
    if not text.strip():
        raise ConfigError(f"{where} has no value; null is written null")
    return parse_yaml(text, source=where)
