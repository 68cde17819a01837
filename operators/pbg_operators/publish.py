"""``PublishOperator``: announces a release to every DAG that waits for it.

``FinishOperator`` also does the tasks between training and that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from pbg_operators.announcing import AnnouncingOperator
from pbg_operators.lineage import tasks_of
from pbg_operators.task import answer
from pbg_tasks.config.results import Metrics, PublishAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Asset, Context
    from pydantic import JsonValue

    from pbg_operators.alerts import Alert


class PublishOperator(AnnouncingOperator):
    """Run ``pbg publish``; a new release is announced once.

    The asset gets an event only when the channel moved. A run that was not to be published, or that re-embedded an
    older snapshot, leaves the channel where it is: the task is then *skipped*, because Airflow then sends no event to
    the asset's consumers. So it is where the spec names another channel than it did when the run was planned: the run
    keeps to its own, whose asset this task no longer has.

    Args:
        asset: the channel.
        facts: templates that render to JSON; carried by the event beside the command's result.
        alert: sends a message on the release to people.
    """

    template_fields: Sequence[str] = (*AnnouncingOperator.template_fields, "facts")

    def __init__(
        self,
        *,
        asset: Asset,
        facts: dict[str, str],
        alert: Alert | None = None,
        command: str = "publish",
        **kwargs: Any,  # noqa: ANN401 - PbgOperator's own arguments
    ) -> None:
        super().__init__(command=command, announces="publish", asset=asset, **kwargs)
        self.facts = facts
        self.alert = alert

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Publish the run.

        Raises:
            AirflowSkipException: the channel of the asset did not move, or the release was announced before.
        """
        result = super().execute(context)
        found = answer(PublishAnswer, self.command, result)
        if (reason := self._unmoved(found)) is not None:
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowSkipException(reason)
        if found.announced:
            self._skip_announced(context, result)
        facts = self._facts(result)
        snapshot = str(facts["snapshot"])
        event = context["outlet_events"][self.asset]
        event.extra = {"release": found.release, "directory": found.directory, **facts}
        event.add_partitions(snapshot)
        if self.alert is not None:
            text = f"channel {found.channel} serves release {found.release} of snapshot {snapshot}"
            self.alert({**context}, text)
        return result

    def _unmoved(self, found: PublishAnswer) -> str | None:
        """Return why the asset has no event; None: it has."""
        if not found.published:
            return found.reason
        _, is_channel, named = self.asset.uri.rpartition("/channels/")
        if not is_channel or named == found.channel:
            return None
        return (
            f"release {found.release} is in channel {found.channel}, as the run was planned; the spec names channel "
            f"{named} since, whose consumers get no event"
        )

    def _facts(self, result: Mapping[str, JsonValue]) -> dict[str, JsonValue]:  # noqa: ARG002 - for the operator below
        """Return what the event carries beside the command's result."""
        return {name: json.loads(text) for name, text in self.facts.items()}


class FinishOperator(PublishOperator):
    """Run ``pbg finish``: all tasks after training, in one process.

    Its own result has the MRR, which templates of ``facts`` cannot have.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - PublishOperator's own arguments
        super().__init__(command="finish", **kwargs)

    def _facts(self, result: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        evaluated = answer(Metrics, "eval", tasks_of(self.command, result).get("eval", {}))
        return super()._facts(result) | {"mrr": evaluated.filtered.figure("mrr")}
