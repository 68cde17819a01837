"""The button on a task that leads to its run in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from pbg_tasks.redaction import credentials_in
from pbg_tasks.storage.endpoint import ENDPOINT_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator

    from pbg_operators.internals import TaskInstanceKey


def browsable(run_url: str, environment: Mapping[str, str]) -> str:
    """Return where a browser finds a run: the console of AWS, or the path at a store's own endpoint.

    Empty where the run or the endpoint holds credentials: Airflow stores the link before the command refuses them.
    """
    endpoint = next((environment[name] for name in ENDPOINT_VARIABLES if environment.get(name)), "")
    if credentials_in(run_url) or credentials_in(endpoint) or "@" in endpoint:
        return ""
    parts = urlsplit(run_url)
    if parts.scheme != "s3":
        return run_url if parts.scheme else f"file://{run_url}"
    if endpoint:
        return f"{endpoint.rstrip('/')}/{parts.netloc}{quote(parts.path)}/spec.json"
    return f"https://s3.console.aws.amazon.com/s3/buckets/{parts.netloc}?prefix={quote(parts.path.lstrip('/'))}/"


class RunLink(BaseOperatorLink):
    """Shown as soon as the task knows its run, not only when it has ended.

    Airflow asks ``get_link`` on the worker after the task and stores the answer under ``xcom_key``; the operator
    stores the same value under the same key when it starts.
    """

    @property
    def name(self) -> str:
        """The button's label."""
        return "Run in store"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return what the operator found while it ran; empty when it did not get that far."""
        link: str = getattr(operator, "run_link", "")
        return link
