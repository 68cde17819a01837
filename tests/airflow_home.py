"""An Airflow home of the tests' own, chosen before anything imports Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def use_private_airflow() -> None:
    """Keep this process away from the user's Airflow: its config, database and logs."""
    if "AIRFLOW_TESTS_HOME" in os.environ:
        return
    home = tempfile.mkdtemp(prefix="airflow-tests-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_TESTS_HOME": home,
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
