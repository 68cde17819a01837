"""Jinja expressions of earlier results, with keys from their models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.results import has_key

if TYPE_CHECKING:
    from pbg_tasks.config.results import Stored, TaskResult


def template(expression: str, *, json: bool = False) -> str:
    """Return the template of an expression, rendered to JSON or text."""
    return f"{{{{ {expression}{' | tojson' if json else ''} }}}}"


def pulled(group: str, shape: type[TaskResult], *path: str) -> str:
    """Return the expression of a value in a finished task's result.

    Args:
        group: task group of the task.
        shape: model of its result.
        path: keys, the outermost first.

    Raises:
        KeyError: the model lacks the key.
    """
    _check(shape, path, f"result of {shape.TASK!r}")
    return f"ti.xcom_pull(task_ids='{group}.{shape.TASK}'){''.join(f'[{key!r}]' for key in path)}"


def pulled_or_none(group: str, shape: type[TaskResult], *path: str, within: str | None = None) -> str:
    """Return the expression of a value, or of none.

    A task that a user marked as a success, as after its command was run by hand, has no result in Airflow.

    Args:
        group: task group of the task.
        shape: model of its result.
        path: keys, the outermost first.
        within: command of ``TOGETHER`` that does the task; None: it is one of its own.

    Raises:
        KeyError: the model lacks the key.
    """
    _check(shape, path, f"result of {shape.TASK!r}")
    *outer, last = ("tasks", shape.TASK, *path) if within else path
    inside = "".join(f".get({key!r}, {{}})" for key in outer)
    return f"(ti.xcom_pull(task_ids='{group}.{within or shape.TASK}') or {{}}){inside}.get({last!r})"


def pulled_if_any(group: str, shape: type[TaskResult], key: str, default: str, *, within: str | None = None) -> str:
    """Return the expression of a key, or of a default.

    The default stands for a task without a result, and for a result without the key.

    Args:
        group: task group of the task.
        shape: model of its result.
        key: an outermost one.
        default: a Jinja literal.
        within: command of ``TOGETHER`` whose last task it is; None: it is one of its own.

    Raises:
        KeyError: the model lacks the key.
    """
    _check(shape, (key,), f"result of {shape.TASK!r}")
    return f"(ti.xcom_pull(task_ids='{group}.{within or shape.TASK}') or {{}}).get({key!r}, {default})"


def pulled_answer(task_id: str, shape: type[Stored], key: str) -> str:
    """Return the expression of a value in a finished task's answer.

    Args:
        task_id: of the task.
        shape: model of its answer.
        key: an outermost one.

    Raises:
        KeyError: the model lacks the key.
    """
    _check(shape, (key,), f"answer of {task_id!r}")
    return f"ti.xcom_pull(task_ids={task_id!r})[{key!r}]"


def _check(shape: type[Stored], path: tuple[str, ...], what: str) -> None:
    if not has_key(shape, *path):
        raise KeyError(f"the {what} has no key {'.'.join(path)!r}")
