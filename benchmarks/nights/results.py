"""The measurements in one JSON file.

Every figure of ``docs/nights.md`` comes from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "nights.json"


def read() -> dict[str, Any]:
    """Return all kept measurements."""
    if not RESULTS.exists():
        return {}
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def keep(section: str, name: str, found: Any) -> None:  # noqa: ANN401 - any JSON value
    """Keep a measurement in place of an earlier one of its name."""
    results = read()
    results.setdefault(section, {})[name] = found
    partial = RESULTS.with_suffix(".part")
    partial.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.rename(RESULTS)
