"""Operators of parts, mapped tasks: of an evaluation, of an export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_operators.export import AfterPublish
from pbg_operators.task import PbgOperator
from pbg_tasks.config.names import part_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from pydantic import JsonValue

    from pbg_tasks.config.exports import Export

EVAL_PART = "eval_part"
_OPTION = "--part="


class EvalPartOperator(PbgOperator):
    """Run ``pbg eval RUN --part=i/n``.

    The task ``eval`` adds the counts of all parts.
    """

    @staticmethod
    def arguments_of(run: str, parts: int) -> list[list[str]]:
        """Return the arguments of each part's task; ``run`` is a template."""
        return [[run, f"{_OPTION}{number}/{parts}"] for number in range(1, parts + 1)]

    def _pod_task(self) -> str:
        return EVAL_PART

    def _stored(self, environment: Mapping[str, str]) -> dict[str, JsonValue]:
        """Return the result that the part's Job has stored."""
        run, option = self.arguments
        task = part_name(self.command, option.removeprefix(_OPTION))
        return self._run(environment, "show", [run, f"--task={task}"])


class ExportPartOperator(AfterPublish):
    """Run ``pbg export-release RUN NAME --part=i/n``.

    The task of the export makes it of all parts.

    Args:
        published: as of ``ExportOperator``.
    """

    template_fields: Sequence[str] = (*PbgOperator.template_fields, "published")

    def __init__(self, *, published: str, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's own arguments
        super().__init__(**kwargs)
        self.published = published

    @staticmethod
    def arguments_of(run: str, export: Export) -> list[list[str]]:
        """Return the arguments of each part's task; ``run`` is a template."""
        return [[run, export.name, f"{_OPTION}{number}/{export.parts}"] for number in range(1, export.parts + 1)]

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Write the part.

        Raises:
            AirflowSkipException: the channel does not serve the run.
        """
        self._skip_unpublished()
        return super().execute(context)

    def _pod_task(self) -> str:
        return f"export-{self.arguments[1]}-part"

    def _stored(self, environment: Mapping[str, str]) -> dict[str, JsonValue]:
        """Run the command again on the worker, which finds its work done."""
        return self._run(environment, self.command, self.arguments)
