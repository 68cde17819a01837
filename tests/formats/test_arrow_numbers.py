"""Numbers of Arrow arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.formats.arrow_numbers import numbers

WITHOUT_PANDAS = """
import sys
import duckdb
import numpy as np
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.formats.arrow_numbers import numbers
for batch in duckdb.sql("SELECT range::BIGINT AS a FROM range(9)").to_arrow_reader(4):
    assert numbers(batch.column("a"), np.int64).size
assert len(Candidates.from_bytes(bytes.fromhex(sys.argv[1])).partition["node"]) == 3
print(sorted({"pandas", "pyarrow.dataset"} & set(sys.modules)))
"""


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_numbers_are_those_of_the_array(dtype):
    values = np.arange(7).astype(dtype)
    for column in (pa.array(values), pa.array(values).slice(2, 3), pa.array(values)[:0], pa.array(values[:0])):
        found = numbers(column, dtype)
        assert found.dtype == dtype
        assert found.tolist() == column.to_pylist()


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array([1.5], pa.float32()), pa.array(["a"])])
def test_other_columns_are_refused(column):
    with pytest.raises(ValueError, match=r"expected|width"):
        numbers(column, np.int64)


def test_numbers_import_no_pandas():
    """A task that needs only columns would spend a second."""
    sample = Candidates({"node": np.arange(3)}, {"node": np.arange(3)}, 3).to_bytes()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, sample.hex()], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
