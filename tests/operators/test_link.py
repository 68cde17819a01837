"""Destination of a task's link."""

from __future__ import annotations

from types import SimpleNamespace

from pbg_operators.link import RunLink, address_of_run


def test_link_leads_to_page_below_airflow(monkeypatch):
    assert address_of_run("reembed_toy", "manual__1") == "/pbg/dags/reembed_toy/runs/manual__1#lineage"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    address = address_of_run("reembed_toy", "backfill__2026-11-01T00:00:00+00:00/x")
    assert address == "/team/pbg/dags/reembed_toy/runs/backfill__2026-11-01T00%3A00%3A00%2B00%3A00%2Fx#lineage"


def test_link_without_run_is_empty():
    key = SimpleNamespace(dag_id="reembed_toy", run_id="manual__1")
    assert RunLink().get_link(SimpleNamespace(run_url=""), ti_key=key) == ""
    assert RunLink().get_link(SimpleNamespace(run_url="s3://b/g/runs/d"), ti_key=key) == address_of_run(
        "reembed_toy", "manual__1"
    )
