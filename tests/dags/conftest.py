"""Fixtures of DAG tests.

Airflow reads its home when it is imported, so it is set before.
"""

from __future__ import annotations

from tests.airflow_home import use_private_airflow

use_private_airflow()
