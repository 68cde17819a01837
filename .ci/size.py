"""Size of the packages: modules, lines, and arrows between their parts.

An arrow is a pair of parts of which one imports the other, at the top of a module, within a function or for types only.
A part is a module or package directly below a room. ``docs/dev/ten-changes.md`` has the figures.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp

ROOMS = ("pbg_tasks", "pbg_tasks.tasks", "pbg_tasks.training", "pbg_tasks.training.ranks")


def main() -> None:
    """Print the figures of the packages in a checkout.

    The first argument is its directory; the present one by default.
    """
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    sys.path[:0] = [str(root), str(root / "operators")]
    files = [path for package in ("pbg_tasks", "operators") for path in (root / package).rglob("*.py")]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    print(f"{len(files)} modules, {lines:,} lines")
    graph = grimp.build_graph("pbg_tasks", cache_dir=None)
    for room in ROOMS:
        parts = {module: _part(module, room) for module in graph.modules}
        arrows = {
            (ours, theirs)
            for module, ours in parts.items()
            for theirs in {parts[each] for each in graph.find_modules_directly_imported_by(module)}
            if ours and theirs and ours != theirs
        }
        print(f"{room}: {len(set(parts.values()) - {''})} parts, {len(arrows)} arrows")


def _part(module: str, room: str) -> str:
    """Return a module's part of a room; empty outside it."""
    return module.removeprefix(f"{room}.").partition(".")[0] if module.startswith(f"{room}.") else ""


if __name__ == "__main__":
    main()
