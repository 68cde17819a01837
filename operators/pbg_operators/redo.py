"""``RedoOperator``: repeats nights of a chain from a day on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pbg_operators.task import PbgOperator, answer, check_arguments
from pbg_tasks.config.results import RedoAnswer

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context
    from pydantic import JsonValue


class RedoOperator(PbgOperator):
    """Run ``pbg redo`` from the day of the form on.

    The channel's asset gets an event of the newest release. A further try goes on where the last one ended. A gate that
    refuses a day ends it, and later days are left.

    Args:
        spec: path of the graph spec.
        asset: the channel.
    """

    def __init__(self, *, spec: str, asset: Asset, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's own
        super().__init__(command="redo", outlets=[asset], **kwargs)
        self.spec, self.asset = spec, asset

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Redo the days.

        Raises:
            AirflowFailException: the form names no day, or a field holds credentials.
            AirflowSkipException: the days were only to be listed, none became a release, or the channel serves another.
        """
        first, dry_run = context["params"]["from"], context["params"]["dry_run"]
        if not first:
            raise AirflowFailException("no day: fill in the corrected snapshot in the form")
        arguments = [self.spec, f"--from={first}", *(["--dry-run"] if dry_run else [])]
        check_arguments(arguments)
        self.arguments = arguments
        with self._reporting(context):
            result = self._run(self._environment(), self.command, arguments)
        found = answer(RedoAnswer, self.command, result)
        released = [day for day in found.redone if day.release is not None]
        if not released or not found.served:
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowSkipException(
                f"the channel does not serve release {released[-1].release} of {released[-1].snapshot}; `pbg releases "
                f"{self.spec}` shows what it serves"
                if released
                else f"no day became a release; the days are {', '.join(found.days)}"
            )
        event = context["outlet_events"][self.asset]
        last = released[-1]
        event.extra = {"release": last.release, "snapshot": last.snapshot, "directory": last.directory}
        event.add_partitions(last.snapshot)
        return result

    def lineage(self) -> tuple[list[str], list[str]]:
        """Return the channel alone: its runs have lineage of their own."""
        return [], [self.asset.uri]
