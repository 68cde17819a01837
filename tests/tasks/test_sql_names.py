"""SQL in names of a snapshot, its files and columns.

It stays text in every query of a night.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.api import Model
from pbg_tasks.errors import ConfigError
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

SQL = (
    "'; COPY (SELECT 1) TO 'CANARY.csv'; --",
    "''; ATTACH 'CANARY.db'; --",
    '"; DROP TABLE raw; --',
    "') FROM range(3)) TO 'CANARY.csv' --",
    "\\'; INSTALL httpfs; --",
    "$$; COPY raw TO 'CANARY.csv'; $$",
    "e1' OR '1'='1",
    "%s %(name)s {snapshot} ?",
    "*", "[a-z]?.tsv",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_canary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.rglob("CANARY*"))


@pytest.mark.rotated(3)
def test_names_of_sql_go_through_a_night(place):
    """Use SQL as entities, relations and columns.

    The second night is compared with the first.
    """
    columns = dict(zip(("lhs", "rel", "rhs"), SQL[1:4], strict=True))
    snapshots = {"location": f"{place.root}/edges/{{snapshot}}.parquet", "format": "parquet"}
    place.write_spec(model={"num_epochs": 1}, columns=columns, snapshots=snapshots)
    rows = [*ring(40), *((name, SQL[at % 3], f"e{end}") for at, name in enumerate(SQL) for end in range(12))]
    (place.root / "edges").mkdir()
    for day, more in (("d1", []), ("d2", [("e1", SQL[0], "e9")])):
        table = dict(zip(columns.values(), zip(*rows, *more, strict=True), strict=True))
        pq.write_table(pa.table(table), place.root / "edges" / f"{day}.parquet")
        summary = run_chain(place.spec, day)
    assert summary["release"]["release"] == 2
    assert summary["entities"]["total"] == 40 + len(SQL)
    with Model.open(summary["release"]["directory"]) as model:
        assert set(SQL) < set(model.entities())
        assert set(SQL[:3]) < set(model.relations)
        assert model.embedding(list(SQL)).shape == (len(SQL), 8)


@pytest.mark.parametrize("name", ["it's; DROP TABLE raw; --.tsv", "a'b' UNION SELECT 1.tsv", "$(touch CANARY).tsv"])
def test_file_with_sql_name_is_one_file(place, name):
    folder = place.root / "edges" / "d1"
    folder.mkdir(parents=True)
    place.snapshot("x", ring(40)).rename(folder / name)
    place.write_spec(snapshots={"location": f"{place.root}/edges/{{snapshot}}/*.tsv", "format": "tsv"})
    run = plan(place.spec, "d1")["run"]
    assert run_task("validate", run)["edges"] == 120


@pytest.mark.parametrize("key", ["d1'; DROP TABLE raw; --", "d1/../d2", "*", "d1\nd2", "${d1}", "{snapshot}", "%2e%2e"])
def test_snapshot_with_invalid_key_is_refused(place, key):
    with pytest.raises(ConfigError, match="snapshot"):
        plan(place.spec, key)
