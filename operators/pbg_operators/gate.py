"""``ApprovalGateOperator``: a task that may refuse a night.

After a refusal it asks a person for approval.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.markdown import as_markdown
from pbg_operators.task import ASKED_KEY, PbgOperator, Refused, RetryableError, Unusable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from pydantic import JsonValue

LONGEST = 500
"""Largest number of characters of a reason."""
QUESTION = "question"
"""Key of the task state with the run that the task has asked about."""
PAUSES = 60.0, 240.0
"""Seconds between the tries to store an answer: another try of the task would ask once more."""


class ApprovalGateOperator(PbgOperator, ApprovalOperator):
    """Run a ``pbg`` command that judges a night; refusals may be approved.

    After a refusal the task waits for a person, in no worker and in no triggerer. The decision is stored with the run
    by ``pbg approve`` or ``pbg reject``, and so gets into the release's document. An approved command is run again, and
    passes. A refusal that cannot be approved makes the task fail at once, with the reason. Without an answer in time
    the night ends as refused, unless ``pbg approve`` was run meanwhile. After a later ``pbg approve`` the task has to
    be cleared.

    Args:
        snapshot: key of the planned snapshot, which the question names; a template.
        hours: for which the task waits.
    """

    template_fields: Sequence[str] = (*PbgOperator.template_fields, "subject", "body")

    def __init__(self, *, command: str, snapshot: str, hours: float, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's own
        super().__init__(
            command=command,
            subject=f"{{{{ dag.dag_id }}}}: {command} refused {snapshot}",
            response_timeout=timedelta(hours=hours),
            fail_on_reject=True,
            **kwargs,
        )
        # Airflow's operator keeps only the params that it gets itself, and drops the DAG's.
        self.params["reason"] = Param(
            "", type="string", maxLength=LONGEST, title="Reason", description="Kept for good."
        )

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Judge the night, and ask for approval when it is refused.

        Raises:
            TaskAwaitingInput: the task waits for a decision.
            Unusable: the refusal cannot be approved.
            Refused: the task has asked about another run before.
        """
        try:
            return super().execute(context)
        except Unusable:
            raise
        except Refused as refusal:
            self._require_first_question(context, refusal)
            choice = "**Approve** goes on with the night all the same, **Reject** ends it."
            context["ti"].xcom_push(key=ASKED_KEY, value=True)
            self.body = f"{as_markdown(str(refusal))}\n\n{choice}"
            return ApprovalOperator.execute(self, context)  # type: ignore[no-any-return] # it only raises

    def _require_first_question(self, context: Context, refusal: Refused) -> None:
        """Refuse to ask about a second run.

        Where a task is cleared, Airflow keeps its question, up to 3.3.2 at least. The reasons for which it refused an
        earlier run would stand beside the answer about this one. A run that is asked about again has the same reasons.

        Raises:
            Refused: the question is another run's.
        """
        state, run = context["task_state_store"], self.arguments[0]
        earlier = state.get(QUESTION, run)
        if earlier == run:
            state.set(QUESTION, run)
            return
        unasked = Refused(
            f"{refusal}; not asked in Airflow, as it would show the question about run {earlier} of "
            "before this task was cleared: decide by `pbg approve` and clear the task, or begin another DAG run of the "
            "snapshot, which asks"
        )
        unasked.unsent = refusal.unsent
        raise unasked from None

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Store the decision, and go on or end the night.

        Raises:
            AirflowFailException: it was rejected, or there was no answer in time.
        """
        # The command finds its result stored and takes seconds. A triggerer would go on with ``execute``, which would
        # ask once more.
        self.deferrable = False
        by = (event.get("responded_by_user") or {}).get("name", "an unnamed user")
        given = (event.get("params_input") or {}).get("reason") or f"{by} gave no reason"
        reason = str(given)[:LONGEST]
        try:  # with the reason as text, since Airflow's API takes a null or a list, and then asks once more
            ApprovalOperator.execute_complete(self, context, {**event, "params_input": {"reason": reason}})
        except HITLTimeoutError:
            return self._judge_again(context)
        except HITLRejectException:
            self._decide("reject", by, reason)
            raise AirflowFailException(f"refused, and rejected by {by}: {reason}") from None
        self._decide("approve", by, reason)
        return self._command(context)

    def _judge_again(self, context: Context) -> dict[str, JsonValue]:
        """Go on where ``pbg approve`` was run while the task waited.

        Otherwise end the night.
        """
        try:
            return self._command(context)  # the refusal was reported before the task waited
        except Refused:
            raise AirflowFailException("refused, and not approved in time") from None

    def _decide(self, command: str, by: str, reason: str) -> None:
        for pause in (*PAUSES, None):
            try:
                self._run(self._environment(), command, [self.arguments[0], f"--by={by}", f"--reason={reason}"])
            except RetryableError as error:
                if pause is None:
                    raise
                self.log.warning("%s; the answer is stored by another try in %.0f s", error, pause)
                time.sleep(pause)
            else:
                return
