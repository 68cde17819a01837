"""An Airflow home of the tests' own, chosen before anything imports Airflow."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile


@functools.cache
def use_private_airflow() -> None:
    """Keep this process away from the user's Airflow.

    Also from that of the process that started this one: config, database and logs.
    """
    home = tempfile.mkdtemp(prefix="airflow-tests-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
