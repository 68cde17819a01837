"""``ApprovalGateOperator``: a task that may refuse a night, and then asks somebody."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.task import PbgOperator, Refused, Unusable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

NOBODY = "nobody in time"
LONGEST = 500
"""Characters of a reason."""


class ApprovalGateOperator(PbgOperator, ApprovalOperator):
    """Run a ``pbg`` command that judges a night; a refusal asks somebody, while the task waits.

    It waits in no worker and in no triggerer. What they decide is stored with the run by ``pbg approve`` or ``pbg
    reject``, and so gets into the release's document. An approved command is run again, and passes. About what nobody
    can approve nobody is asked: the task fails at once, with the reason. Without an answer in time the night ends as
    refused, unless ``pbg approve`` was run meanwhile; whoever runs it later clears the task.

    Args:
        hours: for how long the task waits.
    """

    template_fields: Sequence[str] = (*PbgOperator.template_fields, "subject", "body")

    def __init__(self, *, command: str, hours: float, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's own
        super().__init__(
            command=command,
            subject=f"{{{{ dag.dag_id }}}}: {command} refused {{{{ dag_run.partition_key or params.snapshot }}}}",
            response_timeout=timedelta(hours=hours),
            fail_on_reject=True,
            **kwargs,
        )
        # Of the params that it is given, Airflow's operator forgets the DAG's.
        self.params["reason"] = Param(
            "", type="string", maxLength=LONGEST, title="Reason", description="Kept for good."
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Judge the night, and ask when it is not good enough.

        Raises:
            TaskAwaitingInput: somebody is asked.
            Unusable: nobody can approve the night, so nobody is asked.
        """
        try:
            return super().execute(context)
        except Unusable:
            raise
        except Refused as refusal:
            choice = "**Approve** goes on with the night all the same, **Reject** ends it."
            self.body = f"{as_markdown(str(refusal))}\n\n{choice}"
            return ApprovalOperator.execute(self, context)  # type: ignore[no-any-return] # it only raises

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Store what was decided, and go on or end the night.

        Raises:
            AirflowFailException: it was rejected, or nobody answered in time.
        """
        by = (event.get("responded_by_user") or {}).get("name", NOBODY)
        reason = (event.get("params_input") or {}).get("reason", "")[:LONGEST] or f"{by} gave no reason"
        try:
            ApprovalOperator.execute_complete(self, context, dict(event))
        except HITLTimeoutError:
            return self._judge_again(context)
        except HITLRejectException:
            self._decide("reject", by, reason)
            raise AirflowFailException(f"refused, and rejected by {by}: {reason}") from None
        self._decide("approve", by, reason)
        return self._command(context)

    def _judge_again(self, context: Context) -> dict[str, Any]:
        """Go on where somebody approved the night by ``pbg approve`` while the task waited; else end it."""
        try:
            return self._command(context)  # of the refusal was told before it was asked about
        except Refused:
            raise AirflowFailException(f"refused, and {NOBODY} approved it") from None

    def _decide(self, command: str, by: str, reason: str) -> None:
        self._run(self._environment(), command, [self.arguments[0], f"--by={by}", f"--reason={reason}"])


def as_markdown(text: str) -> str:
    """Return Markdown that shows a text as it is: relations may be named like an image, or a link."""
    return re.sub(r"([\\`*_~\[\]<>!|&])", r"\\\1", text)
