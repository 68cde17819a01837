"""Versions of a Delta table whose commits lack descriptions."""

from __future__ import annotations

import importlib
from pathlib import Path

import pyarrow as pa

from pbg_tasks.config import Snapshots
from pbg_tasks.prepare.sources import snapshot_keys
from pbg_tasks.storage.columnar import filesystem_for


def test_commit_without_description_keeps_its_number(tmp_path):
    """The compaction before it, and nothing else, is left out."""
    deltalake, place = importlib.import_module("deltalake"), tmp_path / "edges"
    for name in "abc":
        deltalake.write_deltalake(place, pa.table({"lhs": [name], "rel": ["r"], "rhs": ["x"]}), mode="append")
    deltalake.DeltaTable(place).optimize.compact()
    deltalake.write_deltalake(place, pa.table({"lhs": ["d"], "rel": ["r"], "rhs": ["x"]}), mode="append")
    commit = Path(place, "_delta_log", f"{4:020}.json")
    actions = commit.read_text().splitlines(keepends=True)
    commit.write_text("".join(line for line in actions if not line.startswith('{"commitInfo"')))
    assert len(deltalake.DeltaTable(place).history()) == 4
    snapshots = Snapshots(location=f"{place}/@{{snapshot}}", format="delta")
    assert snapshot_keys(snapshots) == ["0", "1", "2", "4"]


def test_commit_is_read_once(tmp_path, monkeypatch):
    """A watch lists the same table every minute."""
    deltalake, place = importlib.import_module("deltalake"), str(tmp_path / "edges")
    files, read = filesystem_for(place), []
    content = files.cat_file

    def noted(path):
        read.append(path[-6:])
        return content(path)

    monkeypatch.setattr(files, "cat_file", noted)
    snapshots = Snapshots(location=f"{place}@{{snapshot}}", format="delta")
    for name in "ab":
        deltalake.write_deltalake(place, pa.table({"lhs": [name], "rel": ["r"], "rhs": ["x"]}), mode="append")
        assert snapshot_keys(snapshots) == snapshot_keys(snapshots)
    assert read == ["0.json", "1.json"]
    commit = Path(place, "_delta_log", f"{1:020}.json")
    commit.write_text(commit.read_text().replace('"operation":"WRITE"', '"operation":"OPTIMIZE"'))
    assert snapshot_keys(snapshots) == ["0"]
