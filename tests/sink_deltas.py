"""A whole table and deltas of it in LanceDB: time, memory, rows.

``python -m tests.sink_deltas --rows 1000000`` exports random vectors around a thousand centres, of one space: the first
release as a whole, then ones in which a share of the vectors is another and as many entities are new. Each export is a
process of its own. Prints the rows written, CPU seconds, the peak of memory and the bytes of the directory; exits with
1 where another number of rows was written than differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.sinks.spaces import night

SHARES = (0.001, 0.01, 0.1)
CENTRES, NOISE = 1000, 0.4
OPTIONS = {"moved_above": 0.02}


def exported(data, destination):
    """Export in a process of its own.

    Returns:
        What was measured, CPU seconds, and the peak of memory.
    """
    command = [sys.executable, "-m", "tests.sinks.spaces", str(data.checkpoint), str(destination), json.dumps(OPTIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        last = process.stdout.read().splitlines()[-1:]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"the export ended with {process.returncode}")
    return json.loads(last[0]), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def size_of(folder):
    """Return the bytes of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(arguments=None):
    """Export the releases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=64)
    asked = parser.parse_args(arguments)
    rng, wrong, before = np.random.default_rng(0), 0, 0
    centres = rng.normal(size=(CENTRES, asked.dimension)).astype(np.float32)

    def drawn(count):
        noise = rng.normal(scale=NOISE, size=(count, asked.dimension)).astype(np.float32)
        return centres[rng.integers(CENTRES, size=count)] + noise

    vectors = drawn(asked.rows)
    with tempfile.TemporaryDirectory(prefix="pbg-deltas-") as name:
        folder = Path(name)
        for number, share in enumerate((None, *SHARES)):
            expected = asked.rows
            if share is not None:
                count = int(share * asked.rows)
                moved = rng.choice(asked.rows, size=count, replace=False)
                vectors[moved] = drawn(count)
                vectors = np.concatenate((vectors, drawn(count)))
                expected = 2 * count
            rows = {f"e{row}": vector for row, vector in enumerate(vectors)}
            data = night(folder / str(number), rows, dimension=asked.dimension)
            found, seconds, peak = exported(data, folder / "lance")
            stored = size_of(folder / "lance")
            wrong += found["written_rows"] != expected
            print(
                f"{'whole' if share is None else f'{share:.1%} moved and new'}: {found['written_rows']} of {len(rows)} "
                f"rows written, {seconds:.1f} CPU s, {peak / 1e6:.0f} MB, {(stored - before) / 1e6:.0f} MB stored, "
                f"recall {found['tables']['user']['recall']:.3f}",
                flush=True,
            )
            before = stored
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
