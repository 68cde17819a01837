"""Tables and maps that a notebook shows of a model."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pbg_tasks.report.embedding_map import MapDocument

COLOURS = ("#1f77b4", "#d55e00", "#2a9d5c", "#b3261e", "#7b4fb5", "#6b6b6b")
WIDTH, HEIGHT = 640, 420
EDGE, LEGEND = 12, 22
"""Pixels of a map, of its margin, and of a line of its legend."""


def html_table(rows: Iterable[Sequence[object]]) -> str:
    """Return a table of rows that begin with a title, all escaped."""
    body = []
    for row in rows:
        first, *others = (escape(str(cell)) for cell in row)
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        body.append(f'<tr><th style="text-align:left">{first}</th>{cells}</tr>')
    return f"<table><tbody>{''.join(body)}</tbody></table>"


class EmbeddingMap:
    """Sample of entities in two dimensions, which a notebook draws.

    The axes are those of most variance, as on the page of a run. ``to_pandas`` makes a data frame of it, and so does
    any library that takes Arrow, such as ``polars.DataFrame``.

    Attributes:
        table: columns ``name``, ``type``, ``x`` and ``y``.
        shown: share of the sample's variance that the two axes have.
    """

    def __init__(self, document: MapDocument) -> None:
        points = [(point["name"], kind, *point["at"]) for kind, found in document["types"].items() for point in found]
        columns = zip(*points, strict=True) if points else ((), (), (), ())
        kinds = (pa.string(), pa.string(), pa.float64(), pa.float64())
        self.table = pa.table(
            {
                name: pa.array(list(column), kind)
                for name, kind, column in zip(("name", "type", "x", "y"), kinds, columns, strict=True)
            }
        )
        self.shown = document["shown"]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"<EmbeddingMap of {len(self)} entities, two axes with {self.shown:.0%} of the variance>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the table to libraries of data frames."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:  # noqa: ANN401 - of a package that may be missing
        """Return the table as a pandas data frame."""
        return self.table.to_pandas()

    def _repr_html_(self) -> str:
        """Return the map as an SVG; a name shows under the pointer."""
        kinds = list(dict.fromkeys(self.table["type"].to_pylist()))
        height = HEIGHT + LEGEND * len(kinds)
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(repr(self))}" width="{WIDTH}" '
            f'height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">'
        )
        parts = [opening]
        x, y = self._pixels("x", WIDTH), self._pixels("y", HEIGHT)
        for name, kind, across, up in zip(
            *(self.table[each].to_pylist() for each in ("name", "type")), x, y, strict=True
        ):
            parts.append(
                f'<circle cx="{across:.1f}" cy="{HEIGHT - up:.1f}" r="3" fill="{_colour(kinds, kind)}" '
                f'fill-opacity="0.7"><title>{escape(name)}</title></circle>'
            )
        for number, kind in enumerate(kinds):
            line = HEIGHT + LEGEND * number + LEGEND / 2
            parts.append(
                f'<circle cx="{EDGE}" cy="{line}" r="5" fill="{_colour(kinds, kind)}"/>'
                f'<text x="{2 * EDGE}" y="{line + 4}" fill="currentColor">{escape(kind)}</text>'
            )
        return f"{''.join(parts)}</svg>"

    def _pixels(self, axis: str, size: int) -> list[float]:
        """Return the places on an axis, which fills the map."""
        values = self.table[axis].to_pylist()
        least, most = min(values, default=0.0), max(values, default=0.0)
        scale = (size - 2 * EDGE) / (most - least) if most > least else 0.0
        return [EDGE + (value - least) * scale for value in values]


def _colour(kinds: Sequence[str], kind: str) -> str:
    return COLOURS[kinds.index(kind) % len(COLOURS)]
