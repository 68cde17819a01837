"""Entries of the results as text, for terminal and document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.progress import human_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.speed.results import Entry

HEADINGS = ("", "ours", "theirs", "unit", "ratio (min - max)", "target")


def cells(entry: Entry) -> tuple[str, ...]:
    """Return the cells under ``HEADINGS``."""
    ratio = ""
    if entry["ratio_median"] is not None:
        ratio = f"{entry['ratio_median']:.3g} ({entry['ratio_min']:.3g} - {entry['ratio_max']:.3g})"
    figures = (number(entry["ours"], entry["unit"]), number(entry["theirs"], entry["unit"]))
    return (entry["name"], *figures, entry["unit"], ratio, target(entry))


def number(value: float | None, unit: str) -> str:
    """Write a figure: shares in percent, the others with three digits."""
    if value is None:
        return ""
    return f"{value:.1%}" if unit == "share" else human_count(value)


def target(entry: Entry) -> str:
    """Describe the target, and whether it was reached."""
    if "target" not in entry:
        return ""
    wanted = number(entry["target"], entry["unit"] if entry["ratio_median"] is None else "")
    bound = "at most " if entry["at_most"] else ""
    return f"{bound}{wanted}: {'met' if entry['met'] else 'missed'}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table, the first as its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
