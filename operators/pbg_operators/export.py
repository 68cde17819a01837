"""``ExportOperator``: one of the exports that follow a release."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from airflow.sdk.exceptions import AirflowSkipException

from pbg_operators.announcing import AnnouncingOperator
from pbg_operators.task import PbgOperator, answer
from pbg_tasks.config.results import ExportAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Asset, Context
    from pydantic import JsonValue


class AfterPublish(PbgOperator):
    """Operator that is skipped unless the channel serves the run.

    Attributes:
        published: whether it does, as JSON; null where Airflow does not know, because `publish` was skipped with the
            training, or a user did it by hand and marked it as a success.
    """

    published: str

    def _skip_unpublished(self) -> None:
        """Skip the task of a run that the channel does not serve.

        Raises:
            AirflowSkipException: by the answer of `publish`, or by the store where there is none.
        """
        served = json.loads(self.published)
        if served is None:
            shown: Any = self._run(self._environment(), "show", self.arguments[:1])
            served = (shown["release"] or {}).get("published")
        if not served:
            raise AirflowSkipException("the channel does not serve this run, so it is not exported")


class ExportOperator(AfterPublish, AnnouncingOperator):
    """Run ``pbg export-release``, and announce the export once.

    DAGs that wait for the export get its event. The task runs also where the release was announced before, so that a
    run of the same key finishes the work of another. Where the spec names another channel than it did when the run was
    planned, the export is written and the task *skipped*: the asset that it has by now is the other channel's.

    Args:
        asset: the place that all nights' exports of this name share.
        export: name of its task, as in the run's results.
        snapshot: template that renders to JSON: key of the snapshot, the partition of the asset's event.
        published: template that renders to JSON: whether the channel serves the run; null asks the store.
        channel: template that renders to JSON: name of that channel; null is not compared.
    """

    template_fields: Sequence[str] = (*AnnouncingOperator.template_fields, "snapshot", "published", "channel")

    def __init__(
        self,
        *,
        asset: Asset,
        export: str,
        snapshot: str,
        published: str,
        channel: str = "null",
        **kwargs: Any,  # noqa: ANN401 - PbgOperator's own arguments
    ) -> None:
        super().__init__(command="export-release", announces=export, asset=asset, trigger_rule="none_failed", **kwargs)
        self.snapshot = snapshot
        self.published = published
        self.channel = channel

    def _pod_task(self) -> str:
        return self.announces

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Write the export.

        Raises:
            AirflowSkipException: the channel does not serve the run, or is not the asset's, or the export was announced
                before.
        """
        self._skip_unpublished()
        result = super().execute(context)
        found = answer(ExportAnswer, self.command, result)
        channel, (named,) = json.loads(self.channel), parse_qs(urlsplit(self.asset.uri).query).get("channel", [""])[-1:]
        if channel and named and channel != named:
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowSkipException(
                f"the export is of channel {channel}, as the run was planned; the spec names channel {named} since, "
                "whose consumers get no event"
            )
        if found.announced:
            self._skip_announced(context, result)
        snapshot = json.loads(self.snapshot)
        event = context["outlet_events"][self.asset]
        event.extra = {
            "directory": found.destination,
            "format": found.exchange,
            "types": {name: vectors.document() for name, vectors in found.types.items()},
            "snapshot": snapshot,
        }
        event.add_partitions(snapshot)
        return result
