"""The sink of the page on plug-ins, and its faults."""

from __future__ import annotations

import json

import duckdb
import pytest

from pbg_tasks.config.exports import Export, ExportOptions
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.tasks.exchange.export import export
from tests.model.plugins import documented_parts, package_folder
from tests.tasks.exchanges import model

DUCK = documented_parts()["duck.py"]
NAMED = "sink 'duck', entry point duck:Duck of the package duck 1.0, "


@pytest.fixture
def install(tmp_path, scratch):
    with package_folder(tmp_path / "site") as write:
        yield lambda source: write("duck", source, {"pbg_tasks.sinks": {"duck": "duck:Duck"}})


def fill(data, place):
    return export("duck", str(data.checkpoint), str(place), options=ExportOptions(types=("user",), options={"keep": 1}))


def pointer(place):
    return json.loads((place / "_pbg" / "pbg" / "current.json").read_text())["tables"]


def test_sink_of_package_keeps_served_and_last_tables(tmp_path, install):
    install(DUCK)
    place, tables = tmp_path / "vectors", []
    for number in range(3):
        done = fill(model(tmp_path / f"data{number}"), place)
        tables.append(done["measured"]["tables"]["user"]["table"])
        assert pointer(place)["pbg_user"]["table"] == tables[-1]
    assert len(set(tables)) == 3  # files without a manifest may have changed
    with duckdb.connect(f"{place}.duckdb", read_only=True) as database:
        assert {name for (name,) in database.execute("show tables").fetchall()} == set(tables[1:])
    records = {path.stem for path in (place / "_pbg" / "pbg" / "tables").iterdir()}
    assert records == set(tables[1:])
    assert Export.model_validate({"format": "duck", "destination": "/data/duck"}).place("/store") == "/data/duck"


def test_row_that_store_changed_is_found_before_readers(tmp_path, install):
    was = "list(rows.vectors)"
    assert was in DUCK
    install(DUCK.replace(was, "list(rows.vectors + (start + np.arange(len(rows.names)) == 5)[:, None])"))
    with pytest.raises(FormatError, match=r"has another vector of '.*' than the model"):
        fill(model(tmp_path / "data"), tmp_path / "vectors")
    assert not (tmp_path / "vectors" / "_pbg" / "pbg" / "current.json").exists()


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ('self.run(f"create', 'self.gone(f"create', f"{NAMED}failed: AttributeError: 'DuckTables' object has no"),
        ("class Duck(Sink)", "class Duck", f"{NAMED}is .*, not a subclass or an instance of"),
    ],
)
def test_fault_of_package_is_named(tmp_path, install, was, becomes, message):
    assert was in DUCK
    install(DUCK.replace(was, becomes))
    with pytest.raises(ConfigError, match=message):
        fill(model(tmp_path / "data"), tmp_path / "vectors")
