"""Airflow connections of tests."""

from __future__ import annotations

CONNECTION = {
    "conn_type": "aws",
    "login": "the-access-key",
    "password": "the-secret-key",
    "extra": {"endpoint_url": "http://127.0.0.1:9", "region_name": "somewhere"},
}
