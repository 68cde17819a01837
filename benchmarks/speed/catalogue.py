"""The existing benchmarks, in the order of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools
    from benchmarks.speed.measurement import Measurement


PBG = "torchbiggraph"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module with ``measure``.

    Attributes:
        name: of the module, and on the command line.
        title: in the document.
        quick: whether it is one of ``make bench-quick``.
        apart: whether it is run on request only, since it takes hours.
        against: program that ours is compared with.
    """

    name: str
    title: str
    quick: bool = False
    apart: bool = False
    against: str = PBG

    def measure(self, tools: Tools, *, quick: bool) -> list[Measurement]:
        """Run it."""
        module = import_module(f"benchmarks.speed.{self.name}")
        found: list[Measurement] = module.measure(tools, quick=quick)
        return found

    def rerun(self, *, quick: bool = False) -> str:
        """Return the command that measures it again."""
        return f'make {"bench-quick" if quick else "bench"} ARGS="{self.name} --again"'


BENCHMARKS = (
    Benchmark("steps", "Training steps", quick=True),
    Benchmark("sets", "Training steps by instruction set", against="plain vectors"),
    Benchmark("one_vs_all", "Training steps against all entities"),
    Benchmark("importing", "Import", quick=True),
    Benchmark("evaluating", "Evaluation", quick=True),
    Benchmark("screening", "Ranking by instruction set", against="torch"),
    Benchmark("exporting", "Export", quick=True),
    Benchmark("libraries", "Import and export by DuckDB and Arrow alone", against="DuckDB and Arrow"),
    Benchmark("epochs", "Partitions and their I/O"),
    Benchmark("memory", "Peak memory"),
    Benchmark("footprint", "Peak memory of both"),
    Benchmark("staging", "S3 staging", against="boto3"),
    Benchmark("angel", "Angel's formats"),
    Benchmark("pykeen", "PyKEEN", against="PyKEEN"),
    Benchmark("peers_slashdot", "Peers on Slashdot, to equal quality", against="each peer"),
    Benchmark("peers_fb15k", "Peers on FB15k, to equal quality", against="each peer"),
    Benchmark("growth", "Growth"),
    Benchmark("night", "A night", against="its training"),
    Benchmark("gpu", "Training steps on a GPU", apart=True, against="the CPU"),
    Benchmark("race", "The race to a filtered MRR of 0.79 on FB15k", apart=True),
)
BY_NAME = {benchmark.name: benchmark for benchmark in BENCHMARKS}
