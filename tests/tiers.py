"""Tiers of tests.

``--fast`` leaves out the files that ``slow.txt`` lists, ``--measure`` writes that list anew. A file is slow when its
tests took longer than ``LIMIT`` together, or one of them has a mark of ``REAL``. It is left out as a whole, before it
is imported: a fast run does not load what only slow files need.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

LIMIT = 3.0
"""Seconds that the tests of a fast file take together, in a run of the whole suite."""
REAL = frozenset({"s3", "airflow", "browser", "interop"})
"""Marks of tests that start servers or other programs."""
ROOT = Path(__file__).resolve().parent
SLOW = ROOT / "slow.txt"


@functools.cache
def slow_files(listing: Path = SLOW) -> frozenset[Path]:
    """Return the files that a fast run leaves out."""
    return frozenset(ROOT / line for line in listing.read_text(encoding="utf-8").splitlines() if line)


def is_left_out(path: Path, slow: frozenset[Path]) -> bool:
    """Whether a fast run leaves out a file or folder."""
    return path in slow if path.is_file() else all(each in slow for each in path.rglob("test_*.py"))


def mark(items: list[pytest.Item]) -> None:
    """Mark tests of the S3 server and of fast files."""
    slow = slow_files()
    for item in items:
        if "object_store" in getattr(item, "fixturenames", ()):
            item.add_marker("s3")
        if item.path not in slow:
            item.add_marker("fast")


class Measurement:
    """Seconds of each file, for the list of slow files.

    Args:
        listing: file of the list; files that did not run keep their place in it.
    """

    def __init__(self, listing: Path = SLOW) -> None:
        self._listing = listing
        self._seconds: Counter[Path] = Counter()
        self._real: set[Path] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a phase of a test."""
        path = ROOT.parent / report.nodeid.partition("::")[0]
        self._seconds[path] += report.duration
        if REAL & report.keywords.keys():
            self._real.add(path)

    def pytest_sessionfinish(self) -> None:
        """Write the list."""
        kept = {path for path in slow_files(self._listing) if path not in self._seconds and path.exists()}
        found = {path for path, seconds in self._seconds.items() if seconds > LIMIT or path in self._real}
        lines = sorted(path.relative_to(ROOT).as_posix() for path in kept | found)
        self._listing.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
