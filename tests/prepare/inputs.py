"""Snapshots good and bad, and the error of each."""

from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.config.run import SnapshotFile
from pbg_tasks.errors import InputError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.validate import validate_snapshot
from pbg_tasks.storage.columnar import list_files

GOOD = "lhs,rel,rhs\na,likes,b\nb,knows,a\nc,likes,b\n"

TYPED = {
    "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
    "relations": [
        {"name": "likes", "lhs": "user", "rhs": "item"},
        {"name": "knows", "lhs": "user", "rhs": "user"},
    ],
    "dimension": 4,
}


def make_spec(root, *, form="csv", model=None, **keys):
    snapshots = {"location": f"{root}/{{snapshot}}", "format": form, **keys.pop("snapshots", {})}
    data = {"graph": "g", "store": str(root), "snapshots": snapshots, "model": model or TYPED, **keys}
    return parse(GraphSpec, data, source="spec")


def check(spec, tmp_path, snapshot="day"):
    files = tuple(SnapshotFile(uri=u, size=s, version=v) for u, s, v in list_files(spec.snapshots.resolve(snapshot)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with connect(spec.resources, scratch) as connection:
        return validate_snapshot(connection, spec, files, before=None, out=scratch)


def refusal(spec, tmp_path):
    with pytest.raises(InputError) as caught:
        check(spec, tmp_path)
    return str(caught.value)


def put(tmp_path, text, name="part.csv"):
    folder = tmp_path / "day"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
