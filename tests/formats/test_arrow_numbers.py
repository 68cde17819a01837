"""Numbers of Arrow arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.formats.arrow_numbers import column, numbers, text_column

WITHOUT_PANDAS = """
import sys
from pathlib import Path
import duckdb
import numpy as np
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.formats.arrow_numbers import numbers
from pbg_tasks.formats.entities import write_entity_columns
with duckdb.connect() as database:
    for batch in database.sql("SELECT range::BIGINT AS a FROM range(9)").to_arrow_reader(4):
        assert numbers(batch.column("a"), np.int64).size
    texts = database.sql("SELECT range::VARCHAR AS a FROM range(9)").to_arrow_reader(4)
    assert write_entity_columns(Path(sys.argv[2]), "node", 0, (batch.column("a") for batch in texts)) == 9
sample = Candidates.from_bytes(bytes.fromhex(sys.argv[1]))
assert len(sample.partition["node"]) == 3
assert sample.to_bytes().hex() == sys.argv[1]
print(sorted({"pandas", "pyarrow.dataset"} & set(sys.modules)))
"""


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_numbers_are_those_of_the_array(dtype):
    values = np.arange(7).astype(dtype)
    for array in (pa.array(values), pa.array(values).slice(2, 3), pa.array(values)[:0], pa.array(values[:0])):
        found = numbers(array, dtype)
        assert found.dtype == dtype
        assert found.tolist() == array.to_pylist()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_column_is_the_array_of_values(dtype):
    values = np.arange(7).astype(dtype)
    for each in (values, values[2:5], values[::2], values[:0]):
        assert column(each).equals(pa.array(each))
    assert text_column(["a", "", "caf\u00e9"]).equals(pa.array(["a", "", "caf\u00e9"]))


@pytest.mark.parametrize("other", [([1, None],), ([1.5], pa.float32()), (["a"],)], ids=["null", "float", "text"])
def test_other_columns_are_refused(other):
    with pytest.raises(ValueError, match=r"expected|width"):
        numbers(pa.array(*other), np.int64)


def test_columns_import_no_pandas(tmp_path):
    """A task that needs only columns would spend a second."""
    sample = Candidates({"node": np.arange(3)}, {"node": np.arange(3)}, 3).to_bytes()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, sample.hex(), tmp_path], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
