"""Lines of results for people.

Figures come first, then parts, indented; parts with the same figures are rows of a table.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

from pbg_tasks.progress import aligned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Figures = dict[str, object]
    """Figures by name, without parts."""

_GROUPED = 10_000  # whole numbers from here on have commas: a year is no such number
_OPEN = (dict, list, tuple, type(None))
_ROWS, _NUMBERS = 20, 12
"""Rows of a table and numbers of a list that are shown; ``--json`` has all."""
_LONG = 120
"""Characters beyond which each text of a list takes a line."""


def result_lines(result: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield a result as lines for people.

    Figures come before parts; what a part leaves open is left out. Parts with the same figures are rows of a table.
    """
    known = {key: value for key, value in result.items() if value or not isinstance(value, _OPEN) or not indent}
    width = max((len(key) for key in known), default=0) + 1
    for key, value in known.items():
        if not _is_part(value):
            yield f"{indent}{f'{key}:'.ljust(width)} {_text(value)}"
    parts = {key: value for key, value in known.items() if _is_part(value)}
    beside = _alike({key: row for key, value in parts.items() if (row := _row(value))})
    if beside:
        yield from _table(beside, indent)
    for key, value in parts.items():
        if key in beside:
            continue
        yield f"{indent}{key}:"
        if isinstance(value, dict):
            rows = _rows(value)
            same = rows and _alike(rows) == rows
            yield from _table(rows, f"{indent}  ") if same else result_lines(value, f"{indent}  ")
        else:
            yield from (f"{indent}  {_sentence(each) or _text(each)}" for each in value)


def _is_part(value: Any) -> TypeGuard[dict[str, object] | list[object] | tuple[object, ...]]:  # noqa: ANN401 - any JSON value
    """Return whether a value takes lines of its own."""
    if isinstance(value, list | tuple):
        texts = [each for each in value if isinstance(each, str)]
        return any(isinstance(each, dict | list) for each in value) or sum(map(len, texts)) > _LONG
    return isinstance(value, dict) and bool(value)


def _row(value: object) -> Figures:
    """Return numbers by name, without what is open; empty for others."""
    if not isinstance(value, dict):
        return {}
    known = {key: each for key, each in value.items() if each or not isinstance(each, _OPEN)}
    return known if len(known) > 1 and all(isinstance(each, int | float) for each in known.values()) else {}


def _rows(part: Mapping[str, object], name: str = "") -> dict[str, Figures]:
    """Return rows of numbers by their path; empty for other parts."""
    rows: dict[str, Figures] = {}
    for key, value in part.items():
        path = f"{name} {key}".strip()
        row = _row(value)
        found = {path: row} if row else _rows(value, path) if isinstance(value, dict) else {}
        if not found:
            return {}
        rows |= found
    return rows


def _alike(rows: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return rows whose figures the longest has, too; empty unless two."""
    most = max(rows.values(), key=len, default={})
    alike = {name: row for name, row in rows.items() if row.keys() <= most.keys()}
    return alike if len(alike) > 1 else {}


def _table(rows: Mapping[str, Figures], indent: str) -> Iterator[str]:
    """Yield rows with a line of their figures' names above."""
    names = max(rows.values(), key=len).keys()
    shown = [("", *names)]
    for name, row in islice(rows.items(), _ROWS):
        shown.append((name, *(_cell(row.get(key)) for key in names)))
    yield from (f"{indent}{line}" for line in aligned(shown))
    if len(rows) > _ROWS:
        yield f"{indent}and {len(rows) - _ROWS:,} more, all of which --json prints"


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value)


def _sentence(value: object) -> str:
    """Return verdict and sentence of a check; empty for anything else."""
    if not isinstance(value, dict) or not value.keys() >= {"sentence", "passed", "name"}:
        return ""
    verdict = "warned" if value.get("warned") else "passed" if value["passed"] else "not passed"
    return f"{verdict}: {value['sentence']} ({value['name']})"


def _text(value: object) -> str:
    """Return a value as text for people."""
    if isinstance(value, dict) and value:
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, list | tuple) and value:
        shown = [_text(each) for each in value]
        if len(shown) > _NUMBERS and all(isinstance(each, int | float) for each in value):
            shown = [*shown[:3], "...", *shown[-3:], f"{len(value)} in all"]
        return ", ".join(shown)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= _GROUPED):
        return f"{value:.6g}" if isinstance(value, float) else f"{value:,}"
    return str(value) if value or value == 0 else "-"
