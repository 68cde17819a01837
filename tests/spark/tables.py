"""Tables and a log of changes, made by the libraries themselves."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from pbg_tasks.storage.s3_settings import s3_settings

_SCHEMA = pa.schema([("head", pa.string()), ("rel", pa.string()), ("rhs", pa.string())])


def _edges(part, rows=100):
    names = [f"n{(part * 37 + row * row) % 90}" for row in range(rows)]
    return pa.table({"head": names, "rel": ["r"] * rows, "rhs": names[1:] + names[:1]}, _SCHEMA)


def iceberg(root, bucket):
    """Make a table of three data files.

    A column is renamed, the partitioning changed, and rows are deleted.

    Returns:
        ``snapshots`` of a spec, the key of a snapshot, and its number of data files.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.transforms import IdentityTransform

    own = {"type": "sql", "uri": f"sqlite:///{root}/lake.db", "warehouse": f"{bucket}/lake"}
    found = s3_settings()
    keys = {"s3.endpoint": found.endpoint, "s3.access-key-id": found.key, "s3.secret-access-key": found.secret}
    catalog = load_catalog("lake", **own, **keys)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.edges", _SCHEMA.set(0, pa.field("lhs", pa.string())))
    table.append(_edges(0).rename_columns(["lhs", "rel", "rhs"]))
    with table.update_schema() as change:
        change.rename_column("lhs", "head")
    with table.update_spec() as change:
        change.add_field("rel", IdentityTransform(), "rel")
    table.append(_edges(1))
    table.append(_edges(2))
    table.delete("head = 'n1'")
    snapshots = {"location": "iceberg://lake/shop.edges/{snapshot}", "format": "iceberg", "options": {"catalog": own}}
    return snapshots, str(table.current_snapshot().snapshot_id), 3


def delta_settings():
    """Return access to the test's S3 server as delta-rs takes it."""
    found = s3_settings()
    return {
        "AWS_ENDPOINT_URL": found.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": found.region,
        "AWS_ACCESS_KEY_ID": found.key,
        "AWS_SECRET_ACCESS_KEY": found.secret,
    }


def delta(root, bucket):
    """Make a table of two partitions, as ``iceberg`` does.

    Rows are deleted.
    """
    import deltalake

    del root
    options = delta_settings()
    for part in range(2):
        rows = _edges(part).append_column("day", pa.array([str(part)] * 100))
        deltalake.write_deltalake(f"{bucket}/edges", rows, mode="append", partition_by=["day"], storage_options=options)
    deltalake.DeltaTable(f"{bucket}/edges", storage_options=options).delete("head = 'n1'")
    return {"location": f"{bucket}/edges@{{snapshot}}", "format": "delta"}, "2", 2


def changes(root, bucket):
    """Make a log of two days, as ``iceberg`` makes a table.

    It has one part.
    """
    del bucket
    # An edge is there once.
    rows = [_edges(part).group_by(["head", "rel", "rhs"], use_threads=False).aggregate([]) for part in range(2)]
    new = rows[1].join(rows[0], ["head", "rel", "rhs"], join_type="left anti").sort_by("head")
    for day, added, removed in (("1", rows[0], rows[0].slice(0, 0)), ("2", new, rows[0].slice(3, 5))):
        signs = ["+"] * len(added) + ["-"] * len(removed)
        folder = root / "log" / day
        folder.mkdir(parents=True)
        pq.write_table(
            pa.concat_tables([added, removed]).append_column("op", pa.array(signs)), folder / "changes.parquet"
        )
    location = f"{root}/log/{{day}}/*.parquet@{{snapshot}}"
    return {"location": location, "format": "changes", "options": {"change": "op", "complete": None}}, "2", 1


MADE = {"iceberg": iceberg, "delta": delta, "changes": changes}
