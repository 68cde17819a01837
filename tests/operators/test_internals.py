"""Internal names of Airflow, all imported by one module."""

from __future__ import annotations

import ast
import inspect
import re
import typing
import warnings
from pathlib import Path

import pytest

from pbg_operators import graphs, internals

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "operators" / "pbg_operators"
PUBLIC = ("airflow.sdk", "airflow.sdk.exceptions", "airflow.triggers.base", "airflow.plugins_manager")


def has(*names):
    return lambda it: all(hasattr(it, name) for name in names)


def takes(*names):
    return lambda it: set(names) <= set(inspect.signature(it).parameters)


def finds_dags_of_user(get_auth_manager):
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager

    assert get_auth_manager.__annotations__["return"] in ("BaseAuthManager", BaseAuthManager)
    return takes("user", "method")(BaseAuthManager.get_authorized_dag_ids)


RELIED_ON = {
    "AsyncCallback": takes("callback_callable", "kwargs"),
    "BaseDeadlineReference": has("serialize_reference", "deserialize_reference"),
    "BaseTimetable": inspect.isclass,
    "CronPartitionTimetable": has("_get_prev", "next_dagrun_info_v2"),
    "DagAccessEntity": has("RUN", "XCOM"),
    "DagDetails": takes("id", "team_name"),
    "DagModel": has("dag_id", "is_paused", "is_stale", "next_dagrun_create_after", "get_team_name"),
    "DagRun": has(
        "id", "dag_id", "run_id", "run_type", "run_after", "start_date", "queued_at", "conf", "partition_key", "dag"
    ),
    "DagRunType": has("BACKFILL_JOB"),
    "DagTag": has("dag_id", "name"),
    "DeadlineAlert": takes("reference", "interval", "callback", "name"),
    "ExecutorLoader": lambda it: has("alias", "module_path")(it.get_executor_names(validate_teams=False)[0]),
    "ExecutorSafeguard": has("tracker"),
    "GetUserDep": lambda it: typing.get_origin(it) is typing.Annotated,
    "RuntimeTaskInstance": lambda it: takes("dag_id", "task_ids", "run_ids", "map_index")(it.get_task_states),
    "SerializedDagModel": has("dag_version_id", "data", "latest_item_select_object"),
    "Stats": has("gauge", "incr"),
    "TaskInstance": has("dag_id", "run_id", "task_id", "map_index", "dag_version_id", "state", "end_date"),
    "TaskInstanceKey": has("dag_id", "run_id", "task_id", "try_number"),
    "XComModel": has("dag_id", "run_id", "task_id", "map_index", "dag_run_id", "key", "value"),
    "create_session": takes("scoped"),
    "hookimpl": callable,
    "get_auth_manager": finds_dags_of_user,
    "requires_access_dag": lambda it: callable(it("GET", internals.DagAccessEntity.RUN)),
    "requires_authenticated": lambda it: callable(it()),
}


def imports_of(path):
    """Return imports of a module as pairs of module and name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_public(module, name):
    import airflow.sdk

    if module.split(".")[0] != "airflow" or module.startswith("airflow.providers."):
        return True
    return module in PUBLIC and (module != "airflow.sdk" or name in airflow.sdk.__all__)


@pytest.mark.parametrize("name", sorted(internals.MODULES))
def test_name_of_airflow_is_as_relied_on(name):
    assert RELIED_ON[name](getattr(internals, name))


def test_names_for_type_checker_are_those_imported():
    declared = {name for module, name in imports_of(PACKAGE / "internals.py") if module.startswith("airflow.")}
    assert declared == set(internals.MODULES) == set(RELIED_ON)


def test_other_modules_import_public_names_alone():
    found = {
        f"{path.relative_to(PACKAGE)}: {module}.{name}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "internals.py"
        for module, name in imports_of(path)
        if not is_public(module, name)
    }
    assert found == set()


def test_absent_name_is_one_clear_error(monkeypatch):
    for module in ("airflow.no_such_module", "airflow.sdk"):
        monkeypatch.setitem(internals.MODULES, "NoSuchName", module)
        with pytest.raises(ImportError, match=rf"^{module}\.NoSuchName: not in Airflow \d.*install Airflow 3\.3"):
            getattr(internals, "NoSuchName")  # noqa: B009 - a module's names are looked up so
    assert not hasattr(internals, "other")


@pytest.mark.parametrize(("release", "warned"), [("3.3.9", 0), ("3.4.0", 1), ("3.30.0", 1)])
def test_untested_release_gives_a_warning(monkeypatch, tmp_path, release, warned):
    monkeypatch.setattr(internals, "_release", lambda: release)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(graphs.build_dags(tmp_path)) == []
    messages = [str(each.message) for each in caught if "has not been tested" in str(each.message)]
    assert len(messages) == warned
    assert all(message.startswith(f"Airflow {release} has not been tested") for message in messages)


def test_locked_release_is_a_tested_one():
    (locked,) = re.findall(r"^apache-airflow==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    assert locked.rpartition(".")[0] in internals.TESTED
