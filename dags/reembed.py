"""The Airflow DAGs of each graph spec of a folder: ``reembed_{graph}``, ``nightly_{graph}`` and those beside them."""

from __future__ import annotations

from pathlib import Path

from pbg_operators.graphs import build_dags, graphs_folder

for dag in build_dags(graphs_folder(default=Path(__file__).resolve().parents[1] / "examples" / "graphs")):
    globals()[dag.dag_id] = dag
