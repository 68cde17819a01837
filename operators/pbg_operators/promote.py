"""``PromoteOperator``: lets the readers' channel take over a release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pbg_operators.announcing import AnnouncingOperator
from pbg_operators.task import answer, check_arguments
from pbg_tasks.config.results import PromoteAnswer

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context
    from pydantic import JsonValue


class PromoteOperator(AnnouncingOperator):
    """Run ``pbg promote``; the readers' channel has an event once a release.

    The task is *skipped* where the channel did not move, because Airflow then sends no event to the asset's consumers:
    nothing was due, a share was set or ended, or the release was announced before.

    Args:
        spec: path of the graph spec.
        asset: the channel that readers follow.
        by_form: do what the form asks for; else what the spec's ``promote`` rules after a night.
    """

    operator_extra_links = ()

    def __init__(self, *, spec: str, asset: Asset, by_form: bool = False, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(command="promote", asset=asset, announces="promote", **kwargs)
        self.spec, self.by_form = spec, by_form
        self.promoted_run = ""

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Promote, share, or end a share.

        Raises:
            AirflowFailException: the form asks for two things at once, or a field holds credentials.
            AirflowSkipException: the channel did not move, or the release was announced before.
        """
        self.arguments = [self.spec, *(_asked(context) if self.by_form else ["--due"])]
        check_arguments(self.arguments)
        result = self._run(self._environment(), self.command, self.arguments)
        found = answer(PromoteAnswer, self.command, result)
        if not found.promoted or found.release is None or found.announced:
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowSkipException(found.reason or _unmoved(found))
        self.promoted_run = found.run or ""
        event = context["outlet_events"][self.asset]
        event.extra = {"release": found.release, "snapshot": found.snapshot, "directory": found.directory}
        if found.snapshot is not None:
            event.add_partitions(found.snapshot)
        return result

    def remember(self) -> None:
        """Record with the run of the release that the event was sent.

        An adopted release has no run, and is announced with its first promotion alone.
        """
        if not self.promoted_run:
            return
        surroundings = self._environment() if self._surroundings is None else self._surroundings
        self._run(surroundings, "announced", [self.promoted_run, self.announces])

    def lineage(self) -> tuple[list[str], list[str]]:
        """Return the channel alone: the night has lineage of its own."""
        return [], [self.asset.uri]


def _unmoved(found: PromoteAnswer) -> str:
    if found.release is None:
        return f"a share of the keys of channel {found.channel} reads the release; the channel did not move"
    return f"release {found.release} of channel {found.channel} was announced before"


def _asked(context: Context) -> list[str]:
    """Return the options that the form asks for."""
    form = context["params"]
    by = f"--by={getattr(context['dag_run'], 'triggering_user_name', None) or 'Airflow'}"
    if form["stop"]:
        if form["release"] is not None or form["share"]:
            raise AirflowFailException("the form asks to end a share, and for a release or a share; leave those empty")
        return ["--stop", by]
    options = [by, *(["--other-space"] if form["other_space"] else [])]
    if form["share"]:
        options.append(f"--share={form['share']}")
    return [*([] if form["release"] is None else [str(form["release"])]), *options]
