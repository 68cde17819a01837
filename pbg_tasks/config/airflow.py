"""Settings of Airflow's tasks.

They are never part of a run, because they change no result.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pbg_tasks.config.base import Frozen, did_you_mean
from pbg_tasks.config.schema import NonNegativeInt

EXPORTS = "exports"
"""Name for all tasks of exports; their ids are those of the spec's exports."""
TOGETHER = {
    "prepare": ("validate", "partition", "bucket"),
    "finish": ("preserve", "eval", "drift", "gate", "publish"),
}
"""Commands that do several tasks in one process, and these tasks."""
HEAVY = (
    *("plan", "validate", "partition", "bucket", "train", "preserve", "eval", "eval_part", *TOGETHER),
    *("redo_from_a_day", EXPORTS),
    *("tune_start", "tune_prepare", "tune_trial"),
)
"""Tasks whose time and memory grow with the graph."""
LIGHT = (
    *("drift", "gate", "publish", "promote", "promote_by_form", "summary", "report"),
    *("wait_for_snapshots", "remember", "roll_back_and_forward", "remove_what_nothing_needs"),
    *("tune_select", "tune_finish"),
)

WATCH = "wait_for_snapshots"
"""Name of the task that watches."""
TRIES_OF_WATCH = ("retries", "max_retry_delay")
"""Settings of the watch that only its own section changes: a wider one would let it give up in minutes."""
CONNECTION = "pbg_s3"
"""Airflow connection of a store whose graph names none; it may be missing."""
NIGHTS_TAG, BROKEN_TAG = "reembed", "broken"
"""Tags by which pages find DAGs of nights, and DAGs of specs with errors."""

Text = Annotated[str, Field(min_length=1)]
Tag = Annotated[str, Field(min_length=1, max_length=100)]


def _clear(value: object) -> object:
    """Refuse a duration whose length depends on the reader.

    YAML 1.1 has ``1:30`` as the number 90; here it would be hours and minutes.
    """
    if isinstance(value, bool):
        raise ValueError('is true or false, and a duration is a number of seconds, or "HH:MM:SS" in quotes')  # noqa: TRY004 - pydantic names the key of a ValueError
    if isinstance(value, str) and value.count(":") == 1:
        raise ValueError(
            f'{value!r} may be hours or minutes; write "HH:MM:SS" in quotes, as "00:10:00" for ten minutes, or a '
            "number of seconds"
        )
    return value


Duration = Annotated[timedelta, Field(gt=timedelta(0)), BeforeValidator(_clear)]


class TaskSettings(Frozen):
    """Arguments of Airflow's operators, by Airflow's names.

    Null leaves one to the next wider setting.

    Attributes:
        owner: shown by Airflow; of a person or team.
        pool: limits how many tasks run at once.
        queue: of the workers that take the task.
        priority_weight: among tasks that wait for a slot.
        execution_timeout: seconds, or ``HH:MM:SS``, until a try is ended.
        retries: further tries of a failure that may pass by itself.
        retry_delay: seconds, or ``HH:MM:SS``, before the first of them.
        max_retry_delay: same, at most before any of them.
        executor: name of one of Airflow's executors.
        executor_config: of that executor; ``pod_override`` is a pod in Kubernetes' form.
    """

    owner: Text | None = None
    pool: Text | None = None
    queue: Text | None = None
    priority_weight: int | None = None
    execution_timeout: Duration | None = None
    retries: NonNegativeInt | None = None
    retry_delay: Duration | None = None
    max_retry_delay: Duration | None = None
    executor: Text | None = None
    executor_config: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """Return the settings that are not null."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


class AirflowSettings(Frozen):
    """Settings of a graph's tasks, from the widest to the narrowest.

    Attributes:
        all: of every task.
        heavy: of tasks that grow with the graph: ``plan`` to ``eval``, exports, a redo, and trainings of a
            search.
        light: of all others, which end after an hour, but for a collection, unless ``execution_timeout`` is set.
        tasks: by task id, without its group.
        few_tasks: ``prepare`` for ``validate`` to ``bucket``, ``finish`` for ``preserve`` to ``publish``: a night of a
            small graph is mostly start-up.
        tags: of all DAGs of the graph, beside those that they have.
        connection: of the store, for all tasks, pods and pages; by default ``pbg_s3``, if there is one.
    """

    all: TaskSettings = TaskSettings()
    heavy: TaskSettings = TaskSettings()
    light: TaskSettings = TaskSettings()
    tasks: dict[str, TaskSettings] = Field(default={})
    few_tasks: bool = False
    tags: tuple[Tag, ...] = ()
    connection: Annotated[str, Field(max_length=250, pattern=r"^[A-Za-z0-9_.\-]+$")] = CONNECTION

    @model_validator(mode="before")
    @classmethod
    def _by_its_name(cls, data: Any) -> Any:  # noqa: ANN401 - validators see any input
        """Refuse Airflow's name for what is ``all`` here."""
        if isinstance(data, dict) and "default_args" in data:
            raise ValueError("write the keys of default_args under 'all', such as all: {owner: graphs, retries: 3}")
        return data

    @field_validator("tags")
    @classmethod
    def _free(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if taken := [tag for tag in tags if tag in (NIGHTS_TAG, BROKEN_TAG)]:
            raise ValueError(f"tag {taken[0]!r} is one by which the pages find DAGs; choose another")
        return tags

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := [name for name in self.tasks if name not in (*HEAVY, *LIGHT)]:
            known = (*HEAVY, *LIGHT)
            near = did_you_mean(unknown[0], known, cutoff=0.7)
            raise ValueError(
                f"tasks names {unknown[0]!r}; known tasks: {', '.join(known)}" + (f"; {near}" if near else "")
            )
        for command, tasks in TOGETHER.items():
            if self.few_tasks and (inside := [name for name in self.tasks if name in tasks]):
                raise ValueError(f"tasks names {inside[0]!r}, which with few_tasks is part of the task {command!r}")
            if not self.few_tasks and command in self.tasks:
                raise ValueError(f"tasks names {command!r}, which is a task with few_tasks: true only")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        """Refuse a first delay that is longer than the longest."""
        for task in (*HEAVY, *LIGHT):
            first, longest = (self.of(task).get(key) for key in ("retry_delay", "max_retry_delay"))
            if first is not None and longest is not None and longest < first:
                raise ValueError(
                    f"max_retry_delay of task {task!r} is {longest}, less than its retry_delay, {first}; raise the one "
                    "or lower the other"
                )
        return self

    def of(self, task: str) -> dict[str, Any]:
        """Return the settings of a task.

        Args:
            task: its name, one of ``HEAVY`` or ``LIGHT``.
        """
        wider = self.all.given() | (self.heavy if task in HEAVY else self.light).given()
        if task == WATCH:
            wider = {key: value for key, value in wider.items() if key not in TRIES_OF_WATCH}
        return wider | self.tasks.get(task, TaskSettings()).given()
