"""Tries, time limits and places of tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pbg_operators.gate import ApprovalGateOperator
from pbg_operators.task import PbgOperator
from pbg_tasks.config.airflow import EXPORTS, LIGHT, WATCH
from pbg_tasks.config.prepare import PREPARATION
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pbg_tasks.config import GraphSpec

DEFAULTS: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}
"""Settings of the tasks of all DAGs."""
LIGHT_TIMEOUT = timedelta(hours=1)
"""Time limit of a light task. It takes seconds, so after this time it hangs."""
COLLECTION = "remove_what_nothing_needs"
"""Name of the task that collects, whose time grows with the store."""
WATCH_TRIES: dict[str, Any] = {"retries": 50, "max_retry_delay": timedelta(minutes=30)}
"""Settings of the watch, which are enough for about a day of failures. A watch that gave up sooner would only begin
anew, ``@continuous``, and alert each time. So only the watch's own settings in a spec change them.

Only a failure that further tries hardly mend gets so far: the triggerer itself asks a silent store again.
"""


def defaults(spec: GraphSpec) -> dict[str, Any]:
    """Return the arguments of the tasks of a graph's DAGs."""
    return DEFAULTS | {"store_conn_id": spec.airflow.connection}


def facts(spec: GraphSpec) -> dict[str, Any]:
    """Return what the tasks of a night know of their graph."""
    return {"graph": spec.graph, "snapshots": spec.snapshots.location, "columns": spec.columns.model_dump()}


def apply(spec: GraphSpec, tasks: Iterable[Any], spec_path: Path, prefix: str = "") -> None:
    """Apply a spec's settings to tasks.

    Args:
        spec: of the graph.
        tasks: of one of its DAGs or groups.
        spec_path: path of its file.
        prefix: of the ids of the tasks; with a full stop at its end.

    Raises:
        ConfigError: ``executor_config.pod_override`` is no pod or cannot be read here, or this Airflow lacks the
            executor, for which it would drop all DAGs of the file.
    """
    for task in tasks:
        if hasattr(task, "partial_kwargs"):  # a mapped task gets its settings when it is made
            continue
        own = task.task_id.removeprefix(prefix)
        name = EXPORTS if own.startswith(f"{EXPORTS}.") else own.rpartition(".")[2]
        settings = settings_of(spec, name, spec_path)
        if name in LIGHT and not _waits(task, name):
            settings = {"execution_timeout": LIGHT_TIMEOUT} | settings
        if "connection" in spec.airflow.model_fields_set and hasattr(task, "store_conn_id"):
            settings = settings | {"store_conn_id": spec.airflow.connection}  # before default_args of the DAG
        for key, value in settings.items():
            setattr(task, key, value)


def connection_of(spec: GraphSpec, task: PbgOperator) -> str | None:
    """Return the store's connection for a mapped task beside another."""
    return spec.airflow.connection if "connection" in spec.airflow.model_fields_set else task.store_conn_id


def place_of(spec: GraphSpec, name: str) -> dict[str, Any]:
    """Return the arguments of a task in a pod or on Spark.

    There are none for another.
    """
    launch = spec.launch
    if launch.spark is not None and name in PREPARATION:
        return {"spark": launch.spark}
    pod = launch.pod(name)
    return {} if pod is None else {"kubernetes": pod}


def settings_of(spec: GraphSpec, name: str, spec_path: Path) -> dict[str, Any]:
    """Return a task's settings by the spec; raises as ``apply`` does."""
    settings = spec.airflow.of(name)
    longest = (WATCH_TRIES if name == WATCH else DEFAULTS)["max_retry_delay"]
    if (first := settings.get("retry_delay")) is not None and first > longest:
        settings.setdefault("max_retry_delay", first)  # else Airflow would cut the delay without a word
    if executor := settings.get("executor"):
        _check_executor(executor, spec_path)
    if pod := settings.get("executor_config", {}).get("pod_override"):
        settings["executor_config"] = settings["executor_config"] | {"pod_override": _pod(pod, spec_path)}
    return settings


def _waits(task: object, name: str) -> bool:
    """Return whether a task has no time limit.

    It may wait for people, snapshots or a cluster, or for a store to list and remove all that is there.
    """
    in_pod = isinstance(task, PbgOperator) and task.kubernetes is not None
    return in_pod or isinstance(task, ApprovalGateOperator) or name in {WATCH, COLLECTION}


def _check_executor(name: str, spec_path: Path) -> None:
    from pbg_operators.internals import ExecutorLoader

    found = ExecutorLoader.get_executor_names(validate_teams=False)
    names = {form for each in found for form in (each.alias, each.module_path, each.module_path.rpartition(".")[2])}
    if name not in names:
        known = ", ".join(sorted(each.alias or each.module_path for each in found))
        raise ConfigError(f"{spec_path}: airflow: executor {name!r}: [core] executor of this Airflow has {known}")


def _pod(pod: Mapping[str, Any], spec_path: Path) -> object:
    where = f"{spec_path}: airflow: executor_config.pod_override"
    try:
        from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
    except ImportError:
        raise ConfigError(f"{where} needs apache-airflow-providers-cncf-kubernetes; install it here") from None
    try:
        return PodGenerator.deserialize_model_dict(dict(pod))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where} is no pod: {error}") from None
