"""Import of TSV edge lists: names to ids, partitions and HDF5 buckets."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.speed.measurement import Measurement, in_turns, per_cpu_second
from benchmarks.speed.workloads import LIVEJOURNAL, TRIPLES, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.progress import human_count
from pbg_tasks.tasks.directory.importing import import_edges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.measurement import Round
    from benchmarks.speed.worker import Worker

_RATE = "edges/cpu-s"
_TARGET = 20.0
_ENTITIES_PER_EDGE = 0.1
_PAIRED, _ONCE, _MANY = 100_000, 1_000_000, 10_000_000
_OUT_OF_CORE_EDGES, _OUT_OF_CORE_GB, _OUT_OF_CORE_TARGET = 50_000_000, 1.0, 2e9
_NAMES, _NAMES_GB = 25_000_000, 8.0
_PARTITIONS = 4
PARTED = LIVEJOURNAL | {"entities": {"user_id": {"num_partitions": _PARTITIONS}}}


class Ours:
    """Our importer.

    Args:
        config: names entities, partitions and paths.
        memory_gb: budget.
    """

    def __init__(self, config: dict[str, Any], memory_gb: float = 4.0) -> None:
        self._config, self._memory_gb = ConfigSchema(**config), memory_gb

    def import_tsv(self, files: list[str]) -> int:
        """Import files of ``lhs rel rhs`` again; return their edges."""
        for directory in (self._config.entity_path, *self._config.edge_paths):
            shutil.rmtree(directory, ignore_errors=True)
        return int(import_edges(self._config, files, TRIPLES, memory_gb=self._memory_gb)["edges"])


def _write_names_tsv(path: Path, names: int) -> None:
    """Write edges whose ends all differ.

    Names have 22 to 25 bytes and no order.
    """
    import duckdb

    lhs, rhs = (f"'user_' || hash(2 * i + {side})" for side in (0, 1))
    rows = f"SELECT {lhs}, 'follow', {rhs} FROM range({names // 2}) t(i)"  # noqa: S608 - our own numbers
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({rows}) TO '{path}' (DELIMITER '\t', HEADER false)")


def write_edges_tsv(path: Path, *, edges: int, entities: int) -> None:
    """Write random edges of one relation.

    Entity ``n`` is drawn with the distribution of a uniform number's square.
    """
    import duckdb

    end = f"'n' || floor(power(random(), 2) * {entities})::INT"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; SELECT setseed(0.5)")
        connection.execute(
            f"COPY (SELECT {end}, 'follow', {end} FROM range({edges})) TO '{path}' (DELIMITER '\t', HEADER false)"  # noqa: S608 - our own numbers
        )


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare imports of 10 M edges.

    10 M edges take PBG a quarter of an hour, and are left out when ``quick``. 50 M edges, within 2 GB, and 25 M names
    are ours only.

    Into one partition: PBG sets aside 50 MiB for each list of a bucket, and more buckets would count that against it.
    """
    ours, theirs = (placed(LIVEJOURNAL, tools.directory / side) for side in ("ours", "theirs"))
    with tools.ours(f"{__name__}:Ours", config=ours) as mine, tools.theirs("Conversion", config=theirs) as pbg:
        few = _sides(tools, mine, pbg, _PAIRED)
        mine(
            "import_tsv", files=[str(_random_edges(tools, _PAIRED))]
        )  # the first import has work that happens once: a large part of so few edges
        paired = in_turns(tools.pairs, few, warm_up=False)
        once = {
            edges: in_turns(1, _sides(tools, mine, pbg, edges), warm_up=False)
            for edges in ((_ONCE,) if quick else (_ONCE, _MANY))
        }
    found = [Measurement.rate(_title(_PAIRED), _RATE, paired["ours"], paired["theirs"], target=_TARGET)]
    for edges, sides in once.items():
        title, note = _title(edges), "one round of each"
        found.append(Measurement.rate(title, _RATE, sides["ours"], sides["theirs"], target=_TARGET, note=note))
    return found if quick else [*found, *_out_of_core(tools), _many_names(tools)]


def _title(edges: int) -> str:
    return f"import of {human_count(edges)} edges"


def _random_edges(tools: Tools, edges: int) -> Path:
    """Return a file of random edges, made when it is missing."""
    path = tools.directory / f"{edges}.tsv"
    if not path.exists():
        write_edges_tsv(path, edges=edges, entities=int(edges * _ENTITIES_PER_EDGE))
    return path


def _sides(tools: Tools, ours: Worker, theirs: Worker, edges: int) -> dict[str, Callable[[], Round]]:
    files = [str(_random_edges(tools, edges))]
    return {name: partial(each, "import_tsv", files=files) for name, each in (("ours", ours), ("theirs", theirs))}


def _out_of_core(tools: Tools) -> list[Measurement]:
    source = _random_edges(tools, _OUT_OF_CORE_EDGES)
    config = placed(PARTED, tools.directory / "large")
    with tools.ours(f"{__name__}:Ours", config=config, memory_gb=_OUT_OF_CORE_GB) as mine:
        done = mine("import_tsv", files=[str(source)])
    title = _title(_OUT_OF_CORE_EDGES)
    note = f"one round of ours only, {_PARTITIONS} partitions; --memory-gb {_OUT_OF_CORE_GB:g}"
    return [
        Measurement(f"{title}, peak memory", "B", done.peak, target=_OUT_OF_CORE_TARGET, at_most=True, note=note),
        Measurement(f"{title}, out of core", _RATE, per_cpu_second(done), note=note),
    ]


def _many_names(tools: Tools) -> Measurement:
    source = tools.directory / "names.tsv"
    _write_names_tsv(source, _NAMES)
    config = placed(PARTED, tools.directory / "names")
    with tools.ours(f"{__name__}:Ours", config=config, memory_gb=_NAMES_GB) as mine:
        done = mine("import_tsv", files=[str(source)])
    title = f"import of {human_count(_NAMES)} names, each in one edge"
    note = f"one round of ours only, {_PARTITIONS} partitions; --memory-gb {_NAMES_GB:g}"
    return Measurement(title, "cpu-s", done.cpu, at_most=True, note=note)
