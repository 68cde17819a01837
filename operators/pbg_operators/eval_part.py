"""``EvalPartOperator``: one part of a night's evaluation, a mapped task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_operators.task import PbgOperator
from pbg_tasks.config.results import EvalPartResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

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
        task = EvalPartResult.task_of(option.removeprefix(_OPTION))
        return self._run(environment, "show", [run, f"--task={task}"])
