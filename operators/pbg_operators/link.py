"""Link from a task to its run in the store."""

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
    """Return the address at which a browser finds a run.

    It is in the console of AWS, or the path at a store's own endpoint. It is empty where the run or the endpoint holds
    credentials: Airflow stores the link before the command refuses them.
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
    """Link to the run, shown before the task has ended.

    Airflow calls ``get_link`` on the worker after the task and stores the answer under ``xcom_key``; the operator
    stores the same value under the same key when it starts, so that the link is shown before the task has ended.
    """

    @property
    def name(self) -> str:
        """Label of the button."""
        return "Run in store"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the link that the operator made while it ran.

        It is empty when the operator ended before that.
        """
        link: str = getattr(operator, "run_link", "")
        return link
