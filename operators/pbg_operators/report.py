"""``ReportOperator``: writes the pages of a night.

It never changes the result of the night.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowSkipException, AirflowTaskTimeout

from pbg_operators.task import PbgOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue


class ReportOperator(PbgOperator):
    """Run ``pbg report``, however the tasks before have ended.

    Where the command fails or takes too long, the task is *skipped*.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's
        super().__init__(command="report", trigger_rule="all_done", **kwargs)

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Write the pages.

        Raises:
            AirflowSkipException: no run was planned, or writing failed.
        """
        if not self.arguments[0]:
            raise AirflowSkipException("no run was planned, so there is nothing to show")
        try:
            return super().execute(context)
        except (AirflowException, OSError) as error:
            raise AirflowSkipException(f"the pages were not written: {error}") from None
        except AirflowTaskTimeout:  # of its time limit; it is no AirflowException
            self.on_kill()
            raise AirflowSkipException(f"the pages were not written within {self.execution_timeout}") from None
