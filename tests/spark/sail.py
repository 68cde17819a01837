"""Sail, an engine in Rust behind Spark Connect, which takes no Java.

Version 0.7.2 is not Spark in what docs/dev/testing.md lists. ``served`` goes round what it can; `IN` of a query within
an expression has no way round, so graphs are compared without delta epochs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pbg_tasks.errors import ConfigError
from tests.spark.servers import free_port, wait_for


@contextlib.contextmanager
def served(log):
    """Run Sail's server, which ``SPARK_REMOTE`` names.

    Raises:
        ConfigError: this environment has no Sail, or a client of Spark that it refuses.
    """
    _check()
    from pyspark.sql.connect.dataframe import DataFrame

    program, port = Path(sys.executable).parent / "sail", free_port()
    with pytest.MonkeyPatch.context() as patch, log.open("w") as output:
        # Of a range it makes a partition for each CPU, and calls a function of rows for those without any, too.
        patch.setenv("SAIL_EXECUTION__DEFAULT_PARALLELISM", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setattr(DataFrame, "sortWithinPartitions", _sorted)
        words = [program, "spark", "server", "--ip", "127.0.0.1", "--port", str(port)]
        with subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent) as server:
            try:
                wait_for(server, port, log)
                patch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{port}")
                yield
            finally:
                server.terminate()


def _check():
    if find_spec("pysail") is None or find_spec("pyspark") is None:
        raise ConfigError(
            "--engine sail takes pysail and a client of Spark in an environment of its own: `make test-sail` makes "
            ".venv-sail; then run .venv-sail/bin/python -m tests.two_engines --engine sail"
        )
    import pyspark

    if tuple(map(int, pyspark.__version__.split(".")[:2])) > (4, 1):
        raise ConfigError(
            f"--engine sail: Sail refuses clients of Spark after 4.1 (`session ... is not running`), and this is "
            f"{pyspark.__version__}; run .venv-sail/bin/python, which `make test-sail` makes"
        )


def _sorted(frame, *columns):
    """Sort by numbers of rows, which a filter reads.

    Sail drops a sort before a function of rows, as nothing seems to need it.
    """
    from pyspark.sql import Window
    from pyspark.sql.functions import row_number, spark_partition_id

    order = Window.partitionBy(spark_partition_id()).orderBy(*columns)
    return frame.withColumn("row_of_sort", row_number().over(order)).filter("row_of_sort > 0").drop("row_of_sort")
