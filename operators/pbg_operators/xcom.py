"""Jinja expressions of earlier results, with keys from their models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.results import has_key

if TYPE_CHECKING:
    from pbg_tasks.config.results import TaskResult


def template(expression: str, *, json: bool = False) -> str:
    """Return the template of an expression, rendered to JSON or text."""
    return f"{{{{ {expression}{' | tojson' if json else ''} }}}}"


def pulled(group: str, shape: type[TaskResult], *path: str, within: str | None = None) -> str:
    """Return the expression of a value in a finished task's result.

    Args:
        group: task group of the task.
        shape: model of its result.
        path: keys, the outermost first.
        within: command of ``TOGETHER`` that does the task; None: it is one of its own.

    Raises:
        KeyError: the model lacks the key.
    """
    _check(shape, path)
    return f"{_pull(group, shape, within)}{''.join(f'[{key!r}]' for key in path)}"


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
    _check(shape, (key,))
    return f"(ti.xcom_pull(task_ids='{group}.{within or shape.TASK}') or {{}}).get({key!r}, {default})"


def _pull(group: str, shape: type[TaskResult], within: str | None) -> str:
    if within is None:
        return f"ti.xcom_pull(task_ids='{group}.{shape.TASK}')"
    return f"ti.xcom_pull(task_ids='{group}.{within}')['tasks'][{shape.TASK!r}]"


def _check(shape: type[TaskResult], path: tuple[str, ...]) -> None:
    if not has_key(shape, *path):
        raise KeyError(f"the result of {shape.TASK!r} has no key {'.'.join(path)!r}")
