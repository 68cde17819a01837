"""A graph spec that tests change."""

from __future__ import annotations

MODEL = {
    "entities": {"user": {"num_partitions": 4}, "item": {"num_partitions": 1}},
    "relations": [
        {"name": "buys", "lhs": "user", "rhs": "item", "operator": "translation"},
        {"name": "knows", "lhs": "user", "rhs": "user", "operator": "diagonal"},
    ],
    "dimension": 16,
}

SPEC = {
    "graph": "shop",
    "store": "s3://bucket/shop",
    "snapshots": {"location": "s3://bucket/edges/{snapshot}/*.csv.gz", "format": "csv"},
    "model": MODEL,
}
