"""Names of Airflow that are not part of its public interface.

Public are ``airflow.sdk`` and its ``exceptions``, ``airflow.triggers.base``, ``airflow.plugins_manager`` and what
providers offer. Whatever else this package imports of Airflow comes from here, so a release of Airflow that moves a
name is met in one module. A name is imported when it is first used: the DAG processor parses DAGs without the database
models that pages and deadlines need.
"""

# ruff: noqa: PLC0414 - the other modules import these names from here

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.api_fastapi.app import get_auth_manager as get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity as DagAccessEntity
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails as DagDetails
    from airflow.api_fastapi.core_api.security import GetUserDep as GetUserDep
    from airflow.api_fastapi.core_api.security import requires_access_dag as requires_access_dag
    from airflow.api_fastapi.core_api.security import requires_authenticated as requires_authenticated
    from airflow.executors.executor_loader import ExecutorLoader as ExecutorLoader
    from airflow.listeners import hookimpl as hookimpl
    from airflow.models.dag import DagModel as DagModel
    from airflow.models.dag import DagTag as DagTag
    from airflow.models.dagrun import DagRun as DagRun
    from airflow.models.serialized_dag import SerializedDagModel as SerializedDagModel
    from airflow.models.taskinstance import TaskInstance as TaskInstance
    from airflow.models.xcom import XComModel as XComModel
    from airflow.sdk.bases.operator import ExecutorSafeguard as ExecutorSafeguard
    from airflow.sdk.bases.timetable import BaseTimetable as BaseTimetable
    from airflow.sdk.definitions.callback import AsyncCallback as AsyncCallback
    from airflow.sdk.definitions.deadline import BaseDeadlineReference as BaseDeadlineReference
    from airflow.sdk.definitions.deadline import DeadlineAlert as DeadlineAlert
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance as RuntimeTaskInstance
    from airflow.sdk.observability.stats import Stats as Stats
    from airflow.sdk.types import TaskInstanceKey as TaskInstanceKey
    from airflow.timetables.trigger import CronPartitionTimetable as CronPartitionTimetable
    from airflow.utils.session import create_session as create_session
    from airflow.utils.types import DagRunType as DagRunType

MODULES = {
    "AsyncCallback": "airflow.sdk",  # public, yet the types of airflow.sdk lack it
    "BaseDeadlineReference": "airflow.sdk",  # same
    "BaseTimetable": "airflow.sdk.bases.timetable",
    "CronPartitionTimetable": "airflow.timetables.trigger",
    "DagAccessEntity": "airflow.api_fastapi.auth.managers.models.resource_details",
    "DagDetails": "airflow.api_fastapi.auth.managers.models.resource_details",
    "DagModel": "airflow.models.dag",
    "DagRun": "airflow.models.dagrun",
    "DagRunType": "airflow.utils.types",
    "DagTag": "airflow.models.dag",
    "DeadlineAlert": "airflow.sdk",  # same
    "ExecutorLoader": "airflow.executors.executor_loader",
    "ExecutorSafeguard": "airflow.sdk.bases.operator",
    "GetUserDep": "airflow.api_fastapi.core_api.security",
    "RuntimeTaskInstance": "airflow.sdk.execution_time.task_runner",
    "SerializedDagModel": "airflow.models.serialized_dag",
    "Stats": "airflow.sdk.observability.stats",
    "TaskInstance": "airflow.models.taskinstance",
    "TaskInstanceKey": "airflow.sdk.types",
    "XComModel": "airflow.models.xcom",
    "create_session": "airflow.utils.session",
    "hookimpl": "airflow.listeners",
    "get_auth_manager": "airflow.api_fastapi.app",
    "requires_access_dag": "airflow.api_fastapi.core_api.security",
    "requires_authenticated": "airflow.api_fastapi.core_api.security",
}
"""Module of each name."""
TESTED = ("3.3",)
"""Releases of Airflow that the tests run with."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any name may be asked for
    """Import a name of Airflow when it is first used.

    Raises:
        ImportError: this Airflow has no such name.
    """
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(MODULES[name]), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{MODULES[name]}.{name}: not in Airflow {_release()}; {_advice()}", name=name) from error


def warn_of_untested_release() -> None:
    """Warn of an Airflow that the tests do not run with."""
    found = _release()
    if ".".join(found.split(".")[:2]) not in TESTED:
        warnings.warn(f"Airflow {found} has not been tested with this package; {_advice()}", stacklevel=2)


def as_part_of_task(operator: Any, context: object) -> None:  # noqa: ANN401 - of any provider
    """Execute a provider's operator within a task of another one.

    Airflow warns of that elsewhere, where a forgotten decorator is the reason.
    """
    tracker = __getattr__("ExecutorSafeguard").tracker
    token = tracker.set(operator)
    try:
        operator.execute(context)
    finally:
        tracker.reset(token)


def _release() -> str:
    return version("apache-airflow-core")


def _advice() -> str:
    return f"if something fails, install Airflow {' or '.join(TESTED)}"
