"""Products of a chunk, by the native engine's kernels and by torch.

    python -m benchmarks.speed.products [--instruction-set avx2] [--rounds 9]

A step multiplies three times on each side of a chunk: queries with candidates for the scores, then the factors made of
them with queries for the candidates' gradients, and with candidates for the queries'. Each is timed alone, by one
thread, in turns with ``torch.mm`` of the same shapes: by oneDNN where that is exact, as MKL uses no more than AVX2 on
CPUs of AMD. It takes g++. torch may use every instruction set of the CPU, so set ``ONEDNN_MAX_CPU_ISA=AVX2`` and
``MKL_ENABLE_INSTRUCTIONS=AVX2`` beside AVX2.
"""

from __future__ import annotations

import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
import typer

from benchmarks.speed.environment import environment
from pbg_tasks import native
from pbg_tasks.model.numerics import use_fast_float32
from pbg_tasks.progress import aligned

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHAPES = ((50, 1_050, 400), (50, 100, 100), (50, 100, 1_024))
"""Edges, candidates and numbers: of FB15k, of a usual night, and of LiveJournal."""
_MARCH = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}
_SECONDS = 0.2
_LARGE = 2_048
_LANES = 16


class _Chunk(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("edges", "candidates", "numbers", "width")),
        *((name, ctypes.c_void_p) for name in ("queries", "rows", "of_queries", "of_rows", "scores", "factors")),
    )


class Chunk:
    """Both sides of the products, on normal numbers.

    Args:
        built: library of ``products.cpp``.
        edges: queries.
        candidates: of each.
        numbers: of a vector.
    """

    def __init__(self, built: ctypes.CDLL, edges: int, candidates: int, numbers: int) -> None:
        self.operations = 2 * edges * candidates * numbers
        generator = torch.Generator().manual_seed(0)
        self._queries = torch.randn(edges, numbers, generator=generator)
        self._rows = torch.randn(candidates, numbers, generator=generator)
        width = -(-candidates // _LANES) * _LANES
        self._factors = torch.randn(edges, width, generator=generator)
        self._scores = torch.zeros(edges, width)
        self._of_queries, self._of_rows = torch.zeros(edges, numbers), torch.zeros(candidates, numbers)
        self._places = [_places(each) for each in (self._queries, self._rows, self._of_queries, self._of_rows)]
        addresses = [each.ctypes.data for each in self._places]
        addresses += [self._scores.data_ptr(), self._factors.data_ptr()]
        self._chunk = _Chunk(edges, candidates, numbers, width, *addresses)
        self._built = built
        self._workspace = built.pbg_workspace_new()

    def sides(self) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
        """Return the native product and torch's, by name."""
        factors = self._factors[:, : len(self._rows)]
        theirs = {
            "scores": lambda: torch.mm(self._queries, self._rows.T),
            "to_candidates": lambda: torch.mm(factors.T, self._queries),
            "to_queries": lambda: torch.mm(factors, self._rows),
        }
        return {name: (self._native(name), product) for name, product in theirs.items()}

    def check(self) -> None:
        """Compare each native product with torch's.

        Raises:
            ArithmeticError: they differ by more than rounding.
        """
        found = {"scores": self._scores, "to_candidates": self._of_rows, "to_queries": self._of_queries}
        for name, (mine, theirs) in self.sides().items():
            found[name].zero_()
            mine()
            expected = theirs()
            if not torch.allclose(found[name][:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-3):
                raise ArithmeticError(f"{name}: the product differs from torch's")

    def close(self) -> None:
        """Free the memory of the kernels."""
        self._built.pbg_workspace_free(self._workspace)

    def _native(self, name: str) -> Callable[[], Any]:
        function = self._built[f"multiply_{name}"]
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p], None
        return lambda: function(ctypes.addressof(self._chunk), self._workspace)


def main(
    instruction_set: Annotated[Literal["avx2", "avx512"], typer.Option(help="Of ours.")] = "avx2",
    rounds: Annotated[int, typer.Option(help="Of each side.")] = 9,
) -> None:
    """Time both and print GFLOP/s and their ratio."""
    torch.set_num_threads(1)
    library = "oneDNN" if use_fast_float32() else "MKL"
    print(environment())
    large = torch.randn(_LARGE, _LARGE)
    table = [["edges x candidates x numbers", "product", "native GFLOP/s", "torch GFLOP/s", "ratio (min - max)"]]
    with tempfile.TemporaryDirectory() as directory:
        built = _build(instruction_set, Path(directory))
        for shape in SHAPES:
            chunk = Chunk(built, *shape)
            chunk.check()
            for name, (mine, theirs) in chunk.sides().items():
                pairs = [(_rate(mine, chunk.operations), _rate(theirs, chunk.operations)) for _ in range(rounds)]
                ratios = sorted(one / other for one, other in pairs)
                rates = (f"{statistics.median(side):.1f}" for side in zip(*pairs, strict=True))
                spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})"
                table.append([" x ".join(map(str, shape)), name.replace("_", " "), *rates, spread])
            chunk.close()
    print(*aligned(table), sep="\n")
    peak = _rate(lambda: torch.mm(large, large), 2 * _LARGE**3)
    print(f"torch by {library}, {_LARGE} x {_LARGE}: {peak:.1f} GFLOP/s; CPU time of one thread")


def _places(rows: torch.Tensor) -> np.ndarray:
    step = rows.shape[1] * rows.element_size()
    return rows.data_ptr() + step * np.arange(len(rows), dtype=np.uint64)


def _build(instruction_set: str, directory: Path) -> ctypes.CDLL:
    library = directory / "products.so"
    sources = Path(native.__file__).parent
    options = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"]
    options += ["-Wno-psabi", "-shared", "-fPIC", "-fvisibility=hidden", f"-march={_MARCH[instruction_set]}"]
    sources_and_target = [f"-I{sources}", str(Path(__file__).with_suffix(".cpp")), "-o", str(library)]
    compiler = shutil.which("g++") or "g++"
    subprocess.run([compiler, *options, f"-DSET={instruction_set}", *sources_and_target], check=True)
    built = ctypes.CDLL(str(library))
    built.pbg_workspace_new.restype = ctypes.c_void_p
    built.pbg_workspace_free.argtypes = [ctypes.c_void_p]
    return built


def _rate(product: Callable[[], Any], operations: int) -> float:
    """Return GFLOP/s of CPU time."""
    product()
    begin = time.process_time()
    times = 0
    while time.process_time() - begin < _SECONDS:
        for _ in range(10):
            product()
        times += 10
    return times * operations / (time.process_time() - begin) / 1e9


if __name__ == "__main__":
    typer.run(main)
