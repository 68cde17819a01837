"""``ExportOperator``: one of the exports that follow a release."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from operators.task import PbgOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Asset, Context


class ExportOperator(PbgOperator):
    """Run ``pbg export-release``, and tell every DAG that waits for the export.

    Args:
        asset: the place that all nights' exports of this name share.
        snapshot: template that renders to JSON: key of the snapshot, the partition of the asset's event.
    """

    template_fields: Sequence[str] = (*PbgOperator.template_fields, "snapshot")

    def __init__(self, *, asset: Asset, snapshot: str, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's
        super().__init__(command="export-release", outlets=[asset], **kwargs)
        self.asset = asset
        self.snapshot = snapshot

    def lineage(self) -> tuple[list[str], list[str]]:
        """Same as of every command; what is written lies at the asset."""
        return super().lineage()[0], [self.asset.uri]

    def execute(self, context: Context) -> dict[str, Any]:
        """Write the export."""
        result = super().execute(context)
        snapshot = json.loads(self.snapshot)
        event = context["outlet_events"][self.asset]
        event.extra = {
            "directory": result["destination"],
            "format": result["exchange"],
            "types": result["types"],
            "snapshot": snapshot,
        }
        event.add_partitions(snapshot)
        return result
