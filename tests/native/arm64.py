"""The native library of arm64 under qemu, in place of this machine's.

As a plugin of pytest (``-p tests.native.arm64``) it makes the tests of the library compare arm64's results
with those in float64. A process under qemu is given the memory of each call, and sends it back.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from pbg_tasks import native
from pbg_tasks.native.abi import Lines, RankProducts, RankTile, Step

SOURCES = Path(native.__file__).parent
COMPILER = shutil.which("aarch64-linux-gnu-g++")
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
LACKING = (
    ""
    if COMPILER and QEMU
    else "needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)"
)
PROGRAM = "PBG_ARM64"
"""Variable with the path of the program, where it was built before."""
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-Wno-psabi",
)
"""Those of setup.py that change the code."""
FUNCTIONS = ("abi", "workspace_new", "workspace_free", "train_steps", "rank", "rank_products", "write_lines")


def build(folder):
    """Build the program with the library and return its path."""
    program = Path(folder) / "pbg-arm64"
    sources = [str(Path(__file__).with_name("arm64.cpp")), str(SOURCES / "native.cpp")]
    subprocess.run([COMPILER, *OPTIONS, f"-I{SOURCES}", "-static", *sources, "-o", str(program)], check=True)
    return program


class Arm64:
    """Functions of the library, each called in the process under qemu."""

    def __init__(self, program):
        self.calls = 0
        self._lock = threading.Lock()
        self._process = subprocess.Popen([QEMU, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.pbg_abi() == sys.modules["pbg_tasks.native.library"].ABI

    def __getattr__(self, name):
        number = FUNCTIONS.index(name.removeprefix("pbg_"))

        def call(first=None, second=0):
            if first is None or isinstance(first, int):
                return self._call(number, first or 0, [])
            return self._call(number, second, memory(first._obj))

        return call

    def pbg_instruction_set(self):
        return b"portable"

    def pbg_use_instruction_set(self, name):
        text = ctypes.create_string_buffer(name)
        return ctypes.c_int32(self._call(7, 0, [(ctypes.addressof(text), len(text), False)])).value

    def _call(self, function, number, regions):
        into, out = self._process.stdin, self._process.stdout
        with self._lock:
            self.calls += function in (3, 4, 5, 6)
            into.write(struct.pack("=QQQ", function, number, len(regions)))
            for address, size, is_structure in regions:
                into.write(struct.pack("=QQQ", address, size, is_structure))
                into.write(ctypes.string_at(address, size))
            into.flush()
            (result,) = struct.unpack("=q", out.read(8))
            for address, size, _ in regions:
                ctypes.memmove(address, out.read(size), size)
        return result


def memory(argument):
    """Return the regions of an argument.

    Of each the address, the bytes, and whether there are addresses in it.
    """
    sizes = {Step: of_step, RankTile: of_tile, RankProducts: of_products, Lines: of_lines}[type(argument)](argument)
    found = {}
    for address, size in sizes:
        if address and size:
            found[address] = max(size, found.get(address, 0))
    structures = [argument]
    if isinstance(argument, Step):  # both sides may be one table
        structures += {ctypes.addressof(table.contents): table.contents for table in argument.tables}.values()
    regions = [(ctypes.addressof(each), ctypes.sizeof(each), True) for each in structures]
    return regions + [(address, size, False) for address, size in found.items()]


def of_step(step):
    total, chunks = step.steps * step.edges, -(-step.edges // step.chunk)
    yield from ((step.relations, 8 * total), (step.weights, 4 * total), (step.selves, total))
    yield from ((step.rates, 8 * step.steps), (step.keys, 8 * step.steps), (step.figures, 32 * step.steps))
    for side in range(2):
        drawn, table = step.drawn_per_chunk[side], step.tables[side].contents
        own = step.chunk if step.own and step.corrupted[side] else 0
        alone = 1 if step.selves and step.corrupted[side] else 0
        yield step.ends[side], 8 * total
        yield step.drawn[side], 8 * drawn * (1 if step.all[side] else step.steps * chunks)
        yield step.positive[side], 4 * step.edges
        yield step.negative[side], 4 * step.edges * (own + drawn + alone)
        yield from ((table.rows, 4 * table.count * step.dimension), (table.halves, 2 * table.count * step.dimension))
        yield table.sums, 4 * table.count
        yield from ((table.shared, 4 * step.dimension), (table.shared_sums, 4 * step.dimension))
        for parameter in step.parameters[side]:
            yield parameter.values, 4 * parameter.relations * parameter.size
            yield parameter.sums, 4 * parameter.relations * parameter.size


def of_edges(asked, questions):
    answers = ctypes.c_int64.from_address(asked.answer_start + 8 * questions).value
    yield from ((asked.question, 8 * asked.edges), (asked.ties, 4 * asked.edges), (asked.wins, 4 * asked.edges))
    yield from ((asked.own, 8 * asked.edges), (asked.answer_start, 8 * (questions + 1)), (asked.answers, 8 * answers))
    yield from ((asked.counts, 16 * asked.edges), (asked.close, 16 * asked.capacity))


def of_tile(tile):
    asked = (ctypes.c_int64 * tile.edges).from_address(tile.question) if tile.edges else []
    questions = max(asked, default=-1) + 1
    yield tile.scores, 4 * questions * tile.columns
    yield from of_edges(tile, questions)


def of_products(asked):
    yield asked.queries, 4 * asked.questions * asked.dimension
    yield asked.candidates, 4 * asked.columns * asked.dimension
    yield from of_edges(asked, asked.questions)


def of_lines(lines):
    ends = (ctypes.c_int64 * lines.rows).from_address(lines.head_ends) if lines.rows else [0]
    heads = ctypes.c_void_p.from_buffer(lines, Lines.heads.offset).value
    yield from ((heads, ends[-1]), (lines.head_ends, 8 * lines.rows), (lines.numbers, 4 * lines.rows * lines.columns))
    yield lines.out, ends[-1] + lines.rows + 51 * lines.rows * lines.columns


def pytest_configure():
    """Put the library of arm64 in the place of the other."""
    if LACKING:
        raise SystemExit(LACKING)
    with tempfile.TemporaryDirectory() as folder:
        found = Arm64(os.environ.get(PROGRAM) or build(folder))
    for module in (native, sys.modules["pbg_tasks.native.library"]):
        module.library = lambda: found


def pytest_terminal_summary(terminalreporter):
    """Report the calls, because nothing else shows that the library was used."""
    terminalreporter.write_line(f"{native.library().calls} calls of arm64's library")
