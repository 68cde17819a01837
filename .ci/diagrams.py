"""Drawing of the diagrams in docs/dev/diagrams.

    make diagrams    # takes `dot`: apt-get install graphviz

Each Graphviz file gives an SVG, which ends with the hash of its source. A test compares the hashes, so that an outdated
diagram is found without Graphviz.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "dev" / "diagrams"


def mark(source: Path) -> str:
    """Return the last line of a file's SVG."""
    return f"<!-- made from {source.name}, sha256 {hashlib.sha256(source.read_bytes()).hexdigest()} -->\n"


def outdated() -> list[str]:
    """Name the diagrams whose SVG is missing or of another source."""
    sources = sorted(FOLDER.glob("*.dot"))
    return [source.stem for source in sources if not _drawn(source).endswith(mark(source))]


def _drawn(source: Path) -> str:
    svg = source.with_suffix(".svg")
    return svg.read_text() if svg.exists() else ""


def draw(dot: str, source: Path) -> None:
    """Draw one diagram."""
    svg = subprocess.run([dot, "-Tsvg", str(source)], capture_output=True, text=True, check=True).stdout
    source.with_suffix(".svg").write_text(svg + mark(source))


def main() -> int:
    """Draw what is outdated and return the exit status."""
    names = outdated()
    dot = shutil.which("dot")
    if names and dot is None:
        print(f"diagrams: {', '.join(names)}: not drawn, because there is no `dot`: apt-get install graphviz")
        return 1
    for name in names:
        draw(str(dot), FOLDER / f"{name}.dot")
    print(f"diagrams: {len(names)} drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
