"""``AnnouncingOperator``: a ``pbg`` command of whose success other DAGs are told, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from pbg_operators.task import PbgOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Asset, Context


def remember(context: Mapping[str, Any]) -> None:
    """Remember with the run that the event of a task is out; Airflow calls this once the task has succeeded.

    Before that, a task that is killed would have told nobody, and nobody would be told later.
    """
    context["task"].remember()


class AnnouncingOperator(PbgOperator):
    """Run a command; unless it was announced before, its asset gets an event.

    Runs of one key find everything done, however many there are: only the first announces. What was announced before
    makes the task *skipped*, which is what keeps Airflow from telling the asset's consumers.

    Args:
        asset: that gets the event.
        announces: name of the task whose result is announced, as ``pbg announced`` takes it.
    """

    def __init__(self, *, asset: Asset, announces: str, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's
        super().__init__(outlets=[asset], on_success_callback=remember, **kwargs)
        self.asset = asset
        self.announces = announces
        self._surroundings: dict[str, str] | None = None

    def lineage(self) -> tuple[list[str], list[str]]:
        """Same as of every command; what is written lies at the asset."""
        return super().lineage()[0], [self.asset.uri]

    def remember(self) -> None:
        """Store that the event is out.

        Raises:
            AirflowException: that failed, so another run of the key will announce the same again.
        """
        # Those of the command before: the task is over, and its scratch may be gone.
        surroundings = self._environment() if self._surroundings is None else self._surroundings
        self._run(surroundings, "announced", [self.arguments[0], self.announces])

    def _environment(self) -> dict[str, str]:
        self._surroundings = super()._environment()
        return self._surroundings

    def _skip_announced(self, context: Context, result: Mapping[str, Any]) -> None:
        """End the task as skipped, with its result, if it was announced before.

        Raises:
            AirflowSkipException: it was.
        """
        if result["announced"]:
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowSkipException(f"{self.announces} of {self.arguments[0]} was announced before")
