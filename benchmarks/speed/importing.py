"""Import of TSV edge lists: names to ids, partitions and HDF5 buckets."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import LIVEJOURNAL, TRIPLES, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.progress import human_count
from pbg_tasks.tasks.importing import import_edges

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.speed.harness import Tools

_RATE = "edges/cpu-s"
_TARGET = 20.0
_FEWER, _ONCE = 20, 5
_PARTITIONS = 4
_OUT_OF_CORE_EDGES, _OUT_OF_CORE_GB, _OUT_OF_CORE_TARGET = 50_000_000, 1.0, 2e9
_MODEL = LIVEJOURNAL | {"entities": {"user_id": {"num_partitions": _PARTITIONS}}}


class Ours:
    """Our importer.

    Args:
        config: names entities, partitions and paths.
        memory_gb: budget.
    """

    def __init__(self, config: dict[str, Any], memory_gb: float = 4.0) -> None:
        self._config, self._memory_gb = ConfigSchema(**config), memory_gb

    def import_tsv(self, files: list[str]) -> int:
        """Import files of ``lhs rel rhs``, anew each time; return their edges."""
        for directory in (self._config.entity_path, *self._config.edge_paths):
            shutil.rmtree(directory, ignore_errors=True)
        return int(import_edges(self._config, files, TRIPLES, memory_gb=self._memory_gb)["edges"])


def write_edges_tsv(path: Path, *, edges: int, entities: int) -> None:
    """Write random edges of one relation; entity ``n`` is drawn as often as the square of a uniform number says."""
    import duckdb

    end = f"'n' || floor(power(random(), 2) * {entities})::INT"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; SELECT setseed(0.5)")
        connection.execute(
            f"COPY (SELECT {end}, 'follow', {end} FROM range({edges})) TO '{path}' (DELIMITER '\t', HEADER false)"  # noqa: S608 - our own numbers
        )


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare 10 M edges (``quick``: 1 M), and show that 50 M stay within 2 GB."""
    edges = 1_000_000 if quick else 10_000_000
    fewer = edges // _FEWER
    many = edges // _ONCE
    whole, part, larger = (tools.directory / f"{count}.tsv" for count in (edges, fewer, many))
    for path, count in ((whole, edges), (part, fewer), (larger, many)):
        write_edges_tsv(path, edges=count, entities=edges // 10)
    ours, theirs = (placed(_MODEL, tools.directory / side) for side in ("ours", "theirs"))
    with tools.ours(f"{__name__}:Ours", config=ours) as mine, tools.theirs("Conversion", config=theirs) as pbg:
        sides = {
            "ours": partial(mine, "import_tsv", files=[str(whole)]),
            "theirs": partial(pbg, "import_tsv", files=[str(part)]),
        }
        rounds = in_turns(tools.pairs, sides, warm_up=False)
        # PBG would take an hour for all of them: a larger part, once, shows that its rate does not depend on how many.
        once = [] if quick else [pbg("import_tsv", files=[str(larger)])]
    title = f"import of {human_count(edges)} edges"
    note = f"PBG imports {human_count(fewer)} a round"
    found = [Measurement.rate(title, _RATE, rounds["ours"], rounds["theirs"], target=_TARGET, note=note)]
    if once:
        note = f"PBG imports {human_count(many)}, once"
        found.append(Measurement.rate(f"{title}, more by PBG", _RATE, rounds["ours"][-1:], once, note=note))
    return found if quick else [*found, *_out_of_core(tools)]


def _out_of_core(tools: Tools) -> list[Measurement]:
    source = tools.directory / "large.tsv"
    write_edges_tsv(source, edges=_OUT_OF_CORE_EDGES, entities=_OUT_OF_CORE_EDGES // 10)
    config = placed(_MODEL, tools.directory / "large")
    with tools.ours(f"{__name__}:Ours", config=config, memory_gb=_OUT_OF_CORE_GB) as mine:
        done = mine("import_tsv", files=[str(source)])
    title = f"import of {human_count(_OUT_OF_CORE_EDGES)} edges"
    note = f"ours only; --memory-gb {_OUT_OF_CORE_GB:g}"
    return [
        Measurement(f"{title}, peak memory", "B", done.peak, target=_OUT_OF_CORE_TARGET, at_most=True, note=note),
        Measurement(f"{title}, out of core", _RATE, done.value / done.cpu, note=note),
    ]
