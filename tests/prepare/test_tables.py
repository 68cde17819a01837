"""Snapshots of Iceberg and Delta tables, which the libraries made."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_operators.watch import SnapshotTrigger
from pbg_tasks.config import Snapshots, load_graph_spec
from pbg_tasks.errors import AccessError, ConfigError, InputError, MissingSnapshotError, OutOfTurnError
from pbg_tasks.prepare.sources import Share, iceberg, snapshot_keys, snapshot_source
from pbg_tasks.storage.s3_settings import s3_settings
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.newest import newest_snapshot
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.watermark import Watermark
from tests.spark.tables import delta_settings
from tests.tasks.conftest import ring

SCHEMA = pa.schema([("lhs", pa.string()), ("rel", pa.string()), ("rhs", pa.string())])
LOCATION = "iceberg://lake/shop.edges/{snapshot}"


def edges(rows, schema=SCHEMA):
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


class Lake:
    """A table of a SQLite catalog, in a directory or in S3."""

    def __init__(self, root, warehouse):
        self.options = {"catalog": {"type": "sql", "uri": f"sqlite:///{root}/lake.db", "warehouse": str(warehouse)}}
        more = {}
        if str(warehouse).startswith("s3://"):
            found = s3_settings()
            more = {"s3.endpoint": found.endpoint, "s3.access-key-id": found.key, "s3.secret-access-key": found.secret}
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lake", **self.options["catalog"], **more)
        catalog.create_namespace("shop")
        self.table = catalog.create_table("shop.edges", SCHEMA)

    def write(self, *rows):
        """Append rows; return the snapshot's id."""
        self.table.append(edges(rows, self.table.schema().as_arrow()))
        return self.id

    def mark_deleted(self, kind, name, columns, fields):
        """Commit a file of deletes; return the snapshot's id.

        Spark and Flink write such files, and PyIceberg does not. ``fields`` are the ids of the columns.
        """
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        path = Path(self.options["catalog"]["warehouse"]) / name
        ids = zip(columns.items(), fields, strict=True)
        schema = pa.schema([pa.field(key, of.type, metadata={"PARQUET:field_id": str(id_)}) for (key, of), id_ in ids])
        pq.write_table(pa.table(columns, schema=schema), path)
        file = DataFile.from_args(
            content=DataFileContent[kind],
            file_path=str(path),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(next(iter(columns.values()))),
            file_size_in_bytes=path.stat().st_size,
            equality_ids=list(fields) if kind == "EQUALITY_DELETES" else None,
        )
        file.spec_id = 0
        with self.table.transaction() as transaction:
            change = transaction.update_snapshot().overwrite()
            change.new_manifest_writer = partial(deletes_writer, change)
            change.append_data_file(file)
            change.commit()
        return self.id

    @property
    def id(self):
        return self.table.current_snapshot().snapshot_id

    @property
    def snapshots(self):
        return Snapshots(location=LOCATION, format="iceberg", options=self.options)

    def read(self, snapshot, *columns):
        """Return the rows that a task reads, in their order by text."""
        return read(self.snapshots, snapshot, *columns)


def deletes_writer(change, spec):
    """Return PyIceberg's writer of a manifest, for deletes."""
    from pyiceberg.manifest import ManifestContent, ManifestWriterV2

    class Writer(ManifestWriterV2):
        def content(self):
            return ManifestContent.DELETES

        @property
        def _meta(self):
            return {**super()._meta, "content": "deletes"}

    return Writer(spec, change.schema(), change.new_manifest_output(), change.snapshot_id, "null")


def read(snapshots, snapshot, *columns):
    source = snapshot_source(snapshots)
    (part,) = source.parts(snapshots.resolve(str(snapshot)))
    found = rows(source, part, columns)
    source.check(part)
    count = len(source.pieces(part))
    shares = [Share(**part.model_dump(), number=number, count=count) for number in range(count)]
    assert sorted((row for share in shares for row in rows(source, share, columns)), key=str) == found
    return found


def rows(source, part, columns):
    batches, schema = list(source.batches(part, columns or ("lhs", "rel", "rhs"))), source.schema(part)
    assert all(batch.schema.field(name).type == schema.field(name).type for batch in batches for name in columns)
    return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=str)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path, tmp_path / "warehouse")


def test_snapshot_stays_while_rows_come_and_go(lake):
    first = lake.write(("a", "r", "b"), ("b", "r", "c"))
    second = lake.write(("c", "r", "d"))
    lake.table.delete("lhs = 'a'")
    assert lake.read(first) == [("a", "r", "b"), ("b", "r", "c")]
    assert lake.read(second) == [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d")]
    assert lake.read(lake.id) == [("b", "r", "c"), ("c", "r", "d")]


def test_rows_deleted_by_position_are_left_out(lake):
    """Two data files have such rows, and one has none."""
    lake.write(("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d"))
    lake.write(("d", "r", "e"), ("e", "r", "f"))
    before = lake.write(("f", "r", "g"))
    paths = {
        row["readable_metrics"]["lhs"]["lower_bound"]: row["file_path"]
        for row in lake.table.inspect.files().to_pylist()
    }
    deleted = sorted([(paths["a"], 0), (paths["a"], 2), (paths["d"], 1)])
    columns = {"file_path": pa.array([path for path, _ in deleted]), "pos": pa.array([at for _, at in deleted])}
    after = lake.mark_deleted("POSITION_DELETES", "deletes.parquet", columns, (2147483546, 2147483545))
    assert lake.read(after) == [("b", "r", "c"), ("d", "r", "e"), ("f", "r", "g")]
    assert len(lake.read(before)) == 6
    assert snapshot_keys(lake.snapshots)[-1].endswith(str(after))
    again = lake.write(("c", "r", "d"))  # newer than the deletes
    assert lake.read(again) == [("b", "r", "c"), ("c", "r", "d"), ("d", "r", "e"), ("f", "r", "g")]


def test_rows_deleted_by_value_are_refused(lake):
    lake.write(("a", "r", "b"), ("b", "r", "c"))
    after = lake.mark_deleted("EQUALITY_DELETES", "deletes.parquet", {"lhs": pa.array(["a"])}, (1,))
    with pytest.raises(InputError, match=r"PyIceberg cannot read it .*equality deletes"):
        lake.read(after)


def test_renamed_and_added_columns_hold_for_older_files(lake):
    from pyiceberg.types import FloatType

    first = lake.write(("a", "r", "b"))
    with lake.table.update_schema() as change:
        change.rename_column("lhs", "head")
        change.add_column("weight", FloatType())
    lake.table.append(pa.table({"head": ["x"], "rel": ["r"], "rhs": ["y"], "weight": pa.array([2.0], pa.float32())}))
    assert lake.read(lake.id, "head", "rhs", "weight") == [("a", "b", None), ("x", "y", 2.0)]
    assert lake.read(first, "lhs", "rhs") == [("a", "b")]  # as it was


def test_partitions_that_changed_are_read_together(lake):
    from pyiceberg.transforms import IdentityTransform

    lake.write(("a", "r", "b"))
    with lake.table.update_spec() as change:
        change.add_field("rel", IdentityTransform(), "rel")
    lake.write(("c", "s", "d"), ("e", "t", "f"))
    assert lake.read(lake.id) == [("a", "r", "b"), ("c", "s", "d"), ("e", "t", "f")]


def test_tag_names_a_snapshot_until_it_moves(lake):
    first = lake.write(("a", "r", "b"))
    lake.table.manage_snapshots().create_tag(first, "2026-11-20").commit()
    lake.write(("b", "r", "c"))
    assert lake.read("2026-11-20") == [("a", "r", "b")]
    (part,) = snapshot_source(lake.snapshots).parts(lake.snapshots.resolve("2026-11-20"))
    lake.table.manage_snapshots().remove_tag("2026-11-20").create_tag(lake.id, "2026-11-20").commit()
    with pytest.raises(InputError, match="changed since the run was planned"):
        snapshot_source(lake.snapshots).check(part)
    lake.options["keys"] = "tags"
    assert snapshot_keys(lake.snapshots) == ["2026-11-20"]


def test_expired_snapshot_is_refused_by_name(lake):
    first = lake.write(("a", "r", "b"))
    key = snapshot_keys(lake.snapshots)[0]
    lake.write(("b", "r", "c"))
    lake.table.maintenance.expire_snapshots().by_id(first).commit()
    for name in (first, key):
        with pytest.raises(MissingSnapshotError, match=f"no snapshot or tag '{name}', or it has expired.* it has none"):
            lake.read(name)
    lake.table.manage_snapshots().create_tag(lake.id, "kept").commit()
    with pytest.raises(InputError, match="its last tags are kept"):
        lake.read(first)
    assert len(snapshot_keys(lake.snapshots)) == 1


def test_catalogs_own_settings_go_before_the_stores(lake, monkeypatch):
    from pyiceberg.utils.config import Config

    first = lake.write(("a", "r", "b"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-store")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID", "of-the-catalog")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as in a process that begins now
    lake.options["catalog"]["s3.endpoint"] = "http://127.0.0.1:10"
    assert lake.read(first) == [("a", "r", "b")]
    properties = snapshot_source(lake.snapshots)._table(LOCATION, os.environ).io.properties
    assert (properties["s3.endpoint"], properties["s3.access-key-id"]) == ("http://127.0.0.1:10", "of-the-catalog")


def test_missing_table_is_refused_by_name(lake):
    nowhere = lake.snapshots.model_copy(update={"location": "iceberg://lake/shop.nodes/{snapshot}"})
    with pytest.raises(InputError, match=r"shop.nodes/1: no such table"):
        snapshot_source(nowhere).parts(nowhere.resolve("1"))


def test_nights_follow_a_table_in_s3(place, s3_bucket):
    lake = Lake(place.root, s3_bucket)
    lake.write(*ring(40))
    place.write_spec(
        {"num_epochs": 1},
        snapshots={"location": LOCATION, "format": "iceberg", "options": lake.options},
        nights={"watch": {"every_seconds": 1}},
    )
    (first,) = arrived(lake)
    assert first == newest_snapshot(load_graph_spec(place.spec))
    assert prepared(plan(place.spec, first)["run"]) == 3 * 40
    lake.table.delete("lhs = 'e0'")
    lake.write(("e0", "next", "e1"))
    between, second = sorted(set(snapshot_keys(lake.snapshots)) - {first})
    assert arrived(lake, Watermark(first).passing([first])) == [between, second]
    with pytest.raises(OutOfTurnError, match=f"continues that of '{between}'"):
        plan(place.spec, second, overrides=[f"nights.first={first}"])
    assert prepared(plan(place.spec, second, overrides=[f"nights.first={second}"])["run"]) == 3 * 40 - 3 + 1


def prepared(url):
    """Prepare a night; return the number of its edges."""
    for task in ("validate", "partition", "bucket"):
        run_task(task, url)
    return json.loads((Path(url) / "results" / "bucket.json").read_text())["edges"]["total"]


def arrived(lake, watermark=None):
    """Return what the watch of Airflow's triggerer finds."""
    trigger = SnapshotTrigger(
        conn_id=None,
        location=LOCATION,
        complete="success",
        quiet_seconds=0.0,
        every_seconds=1.0,
        watermark=None if watermark is None else watermark.to_json(),
        table={"format": "iceberg", "options": lake.options},
    )
    return asyncio.run(trigger._arrived())["snapshots"]


DELTA = "{root}/edges@{{snapshot}}"


def delta(root):
    return Snapshots(location=DELTA.format(root=root), format="delta")


@pytest.fixture
def deltalake():
    return importlib.import_module("deltalake")


def test_delta_versions_stay_while_rows_come_and_go(deltalake, s3_bucket):
    place, options = f"{s3_bucket}/edges", delta_settings()
    deltalake.write_deltalake(place, edges([("a", "r", "b"), ("b", "r", "c")]), storage_options=options)
    deltalake.write_deltalake(place, edges([("c", "r", "d")]), mode="append", storage_options=options)
    deltalake.DeltaTable(place, storage_options=options).delete("lhs = 'a'")
    snapshots = delta(s3_bucket)
    assert read(snapshots, 0) == [("a", "r", "b"), ("b", "r", "c")]
    assert read(snapshots, 2) == [("b", "r", "c"), ("c", "r", "d")]
    assert snapshot_keys(snapshots) == ["0", "1", "2"]


def test_delta_column_that_was_added_is_empty_before(deltalake, tmp_path):
    root = tmp_path / "lake@0"
    place = f"{root}/edges"
    deltalake.write_deltalake(place, edges([("a", "r", "b")]))
    more = pa.table({"lhs": ["x"], "rel": ["r"], "rhs": ["y"], "weight": [2.0]})
    deltalake.write_deltalake(place, more, mode="append", schema_mode="merge")
    assert read(delta(root), 1, "lhs", "weight") == [("a", None), ("x", 2.0)]
    assert "weight" not in snapshot_source(delta(root)).schema(part(delta(root), 0)).names
    assert snapshot_keys(delta(root)) == ["0", "1"]


def part(snapshots, version):
    return snapshot_source(snapshots).parts(snapshots.resolve(str(version)))[0]


def test_delta_version_that_is_gone_is_refused(deltalake, tmp_path):
    place = f"{tmp_path}/edges"
    deltalake.write_deltalake(place, edges([("a", "r", "b")]))
    planned = part(delta(tmp_path), 0)
    deltalake.write_deltalake(place, edges([("x", "r", "y")]), mode="overwrite")
    deltalake.DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(InputError, match=r"edges@0: the table or version cannot be read"):
        list(snapshot_source(delta(tmp_path)).batches(planned, ["lhs"]))
    for version, message, may_come in ((7, "version is missing", True), ("new", "'new' is no number", False)):
        with pytest.raises(InputError, match=message) as raised:
            part(delta(tmp_path), version)
        assert isinstance(raised.value, MissingSnapshotError) == may_come


def test_delta_table_refuses_wrong_keys(deltalake, s3_bucket, monkeypatch):
    """A watch fails then; other errors it looks at again."""
    deltalake.write_deltalake(f"{s3_bucket}/edges", edges([("a", "r", "b")]), storage_options=delta_settings())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessError, match=r"edges@.*: reading is refused \([^\x1b]*403 Forbidden[^\x1b]*; check AWS"):
        snapshot_keys(delta(s3_bucket))


def test_store_of_iceberg_refuses_wrong_keys():
    """PyIceberg does not know this error of Arrow."""
    refusal = "When reading key 'a': AWS Error ACCESS_DENIED during HeadObject operation: No response body."
    with pytest.raises(AccessError, match="check keys of catalog and store"), iceberg._errors(LOCATION):
        raise OSError(refusal)


def test_table_made_anew_is_another_one(deltalake, tmp_path):
    place = f"{tmp_path}/edges"
    deltalake.write_deltalake(place, edges([("a", "r", "b")]))
    planned = part(delta(tmp_path), 0)
    shutil.rmtree(place)
    deltalake.write_deltalake(place, edges([("x", "r", "y")]))
    with pytest.raises(InputError, match="changed since the run was planned"):
        list(snapshot_source(delta(tmp_path)).batches(planned, ["lhs"]))


@pytest.mark.parametrize(
    ("form", "location", "options", "message"),
    [
        ("iceberg", "s3://lake/{snapshot}", {}, "format iceberg takes the location iceberg://CATALOG/NAMESPACE.TABLE/"),
        ("iceberg", LOCATION, {"keyz": "tags"}, "unknown key 'keyz'; did you mean 'keys'"),
        ("iceberg", LOCATION, {"catalog": {"uri": "postgresql://me:secret@db/lake"}}, "holds"),
        ("iceberg", LOCATION, {"catalog": {"s3.secret-access-key": "x"}}, "secret-access-key is a credential, which"),
        ("iceberg", LOCATION, {"catalog": {"adls.account-key": "x"}}, "account-key is a credential, which.* plan its"),
        ("iceberg", LOCATION, {"catalog": {"adls.connection-string": "x"}}, "string is a credential, which"),
        (
            "iceberg",
            LOCATION,
            {"catalog": {"header.Authorization": "Bearer x"}},
            "Authorization is a credential, which",
        ),
        ("delta", "s3://lake/{snapshot}", {}, "format delta takes the location the table's location and @{snapshot}"),
    ],
)
def test_wrong_location_or_option_is_refused(form, location, options, message):
    with pytest.raises(ValueError, match=message):
        Snapshots(location=location, format=form, options=options)


@pytest.mark.parametrize(("form", "module"), [("iceberg", "pyiceberg.catalog"), ("delta", "deltalake")])
def test_missing_library_names_the_extra(tmp_path, monkeypatch, form, module):
    monkeypatch.setitem(sys.modules, module, None)
    snapshots = Snapshots(location=LOCATION, format="iceberg") if form == "iceberg" else delta(tmp_path)
    with pytest.raises(ConfigError, match=rf"pip install 'pbg-tasks\[{form}\]'"):
        snapshot_source(snapshots).parts(snapshots.resolve("1"))
