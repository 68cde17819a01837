"""``AnnouncingOperator``: a ``pbg`` command whose success is announced once.

Other DAGs get an event of an asset.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowSkipException

from pbg_operators.task import PbgOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Asset, Context
    from pydantic import JsonValue

SUCCEEDED = "success"
"""State, to Airflow, of a task that has ended well."""


def remember(context: Mapping[str, Any]) -> None:
    """Record with the run that the event of a task was sent.

    Airflow calls this once the task has succeeded. If it were recorded earlier, a killed task would not have sent its
    event, and no later task would send it. Airflow, up to 3.3.2 at least, also calls this where it did not store the
    success, as its server gave no answer or the task was cleared: then there is no event yet, and there may be none.
    Airflow asks its server once more when the process of the task has ended.
    """
    ti = context["ti"]
    of_task = {"dag_id": ti.dag_id, "run_ids": [ti.run_id], "task_ids": [ti.task_id], "map_index": ti.map_index}
    if SUCCEEDED in ti.get_task_states(**of_task).get(ti.run_id, {}).values():
        context["task"].remember()
    else:
        context["task"].log.warning(
            "Airflow has not stored the success yet: the event comes with it, else with another try, and perhaps twice"
        )


class AnnouncingOperator(PbgOperator):
    """Run a command; its asset gets an event, unless announced before.

    Runs of one key find everything done, however many there are: only the first announces. A task that was announced
    before is *skipped*, because Airflow then sends no event to the asset's consumers.

    Args:
        asset: that gets the event.
        announces: name of the task whose result is announced, for ``pbg announced``.
        on_success_callback: as for every operator; called after ``remember``.
    """

    def __init__(
        self,
        *,
        asset: Asset,
        announces: str,
        on_success_callback: Any = None,  # noqa: ANN401 - BaseOperator's own
        **kwargs: Any,  # noqa: ANN401 - PbgOperator's
    ) -> None:
        further = on_success_callback if isinstance(on_success_callback, Collection) else [on_success_callback]
        super().__init__(outlets=[asset], on_success_callback=[remember, *filter(None, further)], **kwargs)
        self.asset = asset
        self.announces = announces
        self._surroundings: dict[str, str] | None = None

    def lineage(self) -> tuple[list[str], list[str]]:
        """Return the same as for every command, with the asset as output."""
        return super().lineage()[0], [self.asset.uri]

    def remember(self) -> None:
        """Record that the event was sent.

        Raises:
            AirflowException: that failed, so another run of the key will announce the same again.
        """
        # The variables of the command before, because the task has ended and its scratch may be removed.
        surroundings = self._environment() if self._surroundings is None else self._surroundings
        self._run(surroundings, "announced", [self.arguments[0], self.announces])

    def _environment(self) -> dict[str, str]:
        self._surroundings = super()._environment()
        return self._surroundings

    def _stored(self, environment: Mapping[str, str]) -> dict[str, JsonValue]:
        """Run the command again on the worker.

        It finds its work done, and returns whether that was announced.
        """
        return self._run(environment, self.command, self.arguments)

    def _skip_announced(self, context: Context, result: Mapping[str, JsonValue]) -> NoReturn:
        """End the task as skipped, with its result, as announced before.

        Raises:
            AirflowSkipException: always.
        """
        context["ti"].xcom_push(key="return_value", value=result)
        raise AirflowSkipException(f"{self.announces} of {self.arguments[0]} was announced before")
