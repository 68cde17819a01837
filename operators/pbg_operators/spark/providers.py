"""Packages of Airflow's providers that start applications of Spark."""

from __future__ import annotations

from importlib.util import find_spec

from pbg_tasks.errors import ConfigError

_NEEDED = {
    "spark_submit": ("airflow.providers.apache.spark", "apache-airflow-providers-apache-spark"),
    "spark_kubernetes": ("airflow.providers.cncf.kubernetes", "apache-airflow-providers-cncf-kubernetes"),
}


def check_provider(mode: str, where: str = "launch.prepare") -> None:
    """Refuse a value of ``launch.prepare`` without its provider.

    Args:
        mode: the value.
        where: place of the key.

    Raises:
        ConfigError: the message names the package.
    """
    if mode not in _NEEDED:
        return
    module, package = _NEEDED[mode]
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        raise ConfigError(
            f"{where}: {mode} takes {package}, which is not installed here; install it where DAGs are parsed "
            "and where tasks run"
        )
