"""A sink of another package, and its faults."""

from __future__ import annotations

import sys

import pytest

from pbg_tasks.config.exports import Export, ExportOptions
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.tasks.exchange.export import export
from tests.model.plugins import package_folder
from tests.tasks.exchanges import model

SHELF = """
from contextlib import contextmanager

import numpy as np

from pbg_tasks.publish.sinks import Rows, Sink, SinkOptions

STORES = {}


class ShelfOptions(SinkOptions):
    flip: int = 0  # number of a row that the store damages


class Shelf(Sink):
    sink_options = ShelfOptions

    @contextmanager
    def connect(self, destination, options):
        yield Tables(STORES.setdefault(destination, {"tables": {}, "records": {}, "served": {}}), options)


class Tables:
    def __init__(self, store, options):
        self.tables, self.kept, self.aliases = store["tables"], store["records"], store["served"]
        self.options = options

    def records(self, collection):
        return dict(self.kept)

    def create(self, table, record):
        self.tables[table], self.kept[table] = [], record

    def count(self, table, record):
        return len(self.tables[table])

    def add(self, table, start, rows):
        self.tables[table][start:] = zip(rows.names, rows.vectors.copy())
        if start <= self.options.flip < start + len(rows.names) and self.options.flip:
            self.tables[table][self.options.flip][1][0] += 1

    def finish(self, table, record):
        return record

    def fetch(self, table, record, numbers_S):
        names, vectors = zip(*(self.tables[table][number] for number in numbers_S))
        return Rows(names, np.array(vectors))

    def search(self, table, record, queries_SD, count):
        vectors = np.array([vector for _, vector in self.tables[table]])
        return np.argsort(-queries_SD @ vectors.T, axis=1)[:, :count]

    def complete(self, table, record):
        self.kept[table] = record

    def served(self, collection):
        return dict(self.aliases)

    def switch(self, collection, tables):
        self.aliases.update({alias: table for alias, (table, _) in tables.items()})

    def drop(self, table, record):
        del self.tables[table], self.kept[table]
"""
NAMED = "sink 'shelf', entry point shelf:Shelf of the package shelf 1.0, "


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "scratch"))
    with package_folder(tmp_path / "site") as write:
        yield lambda source: write("shelf", source, {"pbg_tasks.sinks": {"shelf": "shelf:Shelf"}})


def fill(data, **options):
    return export("shelf", str(data.checkpoint), "shelf://one", options=ExportOptions(types=("user",), **options))


def test_sink_of_package_is_filled_checked_and_served(tmp_path, install):
    install(SHELF)
    data = model(tmp_path / "data")
    done = fill(data)
    store = sys.modules["shelf"].STORES["shelf://one"]
    table = done["measured"]["tables"]["user"]["table"]
    assert store["served"] == {"pbg_user": table}
    assert [name for name, _ in store["tables"][table]] == data.names["user"]
    assert done["measured"]["tables"]["user"]["recall"] == 1.0
    assert Export.model_validate({"format": "shelf", "destination": "shelf://one"}).place("/store") == "shelf://one"


def test_row_that_store_changed_is_found_before_readers(tmp_path, install):
    install(SHELF)
    with pytest.raises(FormatError, match=r"has another vector of '.*' than the model"):
        fill(model(tmp_path / "data"), options={"flip": 5})
    assert sys.modules["shelf"].STORES["shelf://one"]["served"] == {}


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("return dict(self.kept)", "return self.gone", f"{NAMED}failed: AttributeError: 'Tables' object has no"),
        ("class Shelf(Sink)", "class Shelf", f"{NAMED}is .*, not a subclass or an instance of"),
    ],
)
def test_fault_of_package_is_named(tmp_path, install, was, becomes, message):
    install(SHELF.replace(was, becomes))
    with pytest.raises(ConfigError, match=message):
        fill(model(tmp_path / "data"))
