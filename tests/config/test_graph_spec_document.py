"""docs/graph-spec.md: its table of keys and defaults.

It has every key of a graph spec, and the defaults in force.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from pbg_tasks.config import GraphSpec

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "graph-spec.md"
ELSEWHERE = (
    "model",
    "launch.kubernetes",
    "gates.data",
    "gates.drift",
    "gates.relations",
    "gates.min_coverage",
    "gates.min_over_popularity",
    "gates.min_over_start",
    "gates.max_trend_drop",
    "limits",
)
"""Sections whose keys have tables of their own, or whose default is documented as a whole."""
IN_WORDS = ("snapshots.quote", "exports.*.name", "nights.notify.*.arguments")
"""Keys whose default is documented in words, or follows from another key."""
SCHEMA = GraphSpec.model_json_schema()


def keys(schema, path=""):
    """Yield every key with its default; None where it is required."""
    for name, found in schema["properties"].items():
        place = f"{path}{name}"
        below = [each for each in (found, *found.get("anyOf", ()), found.get("items", {})) if "$ref" in each]
        if below and not place.startswith(ELSEWHERE):
            (reference,) = below
            separator = ".*." if "items" in found else "."
            yield from keys(SCHEMA["$defs"][reference["$ref"].rpartition("/")[2]], f"{place}{separator}")
        elif not place.startswith(ELSEWHERE):
            yield place, None if name in schema.get("required", ()) else json.dumps(found.get("default"))


def table():
    """Return the table's defaults by key."""
    found = {}
    for line in DOCUMENT.read_text().partition("## All keys")[2].splitlines():
        if not line.startswith("| `"):
            continue
        names, default, _ = (cell.strip() for cell in line.strip("|").split(" | ", 2))
        paths = re.findall(r"`([^`]+)`", names)
        prefix = paths[0].rpartition(".")[0]
        defaults = default.split(", ") if len(default.split(", ")) == len(paths) else [default] * len(paths)
        for path, told in zip(paths, defaults, strict=True):
            found[path if path.startswith(prefix) else f"{prefix}.{path}"] = told.strip("`")
    return found


def test_every_key_is_listed_with_its_default():
    told = table()
    for key, default in keys(SCHEMA):
        assert key in told
        if default is not None and key not in IN_WORDS:
            expected, said = json.loads(default), told[key].strip('"')
            assert expected == (said if isinstance(expected, str) else yaml.safe_load(said)), key
