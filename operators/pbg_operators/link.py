"""Link from a task to the page of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from pbg_operators.internals import TaskInstanceKey

PREFIX = "/pbg"
"""Path of the pages below Airflow's own."""


def page_address(path: str) -> str:
    """Return the path of a page on Airflow's server."""
    return urlsplit(str(conf.get("api", "base_url", fallback=""))).path.rstrip("/") + PREFIX + path


class RunLink(BaseOperatorLink):
    """Link to the page of the task's run, with its stored documents.

    The store itself would refuse a browser, which has no keys of it; the page serves the documents to readers of the
    DAG. Airflow calls ``get_link`` on the worker after the task and stores the answer under
    ``xcom_key``; the operator stores the same value under the same key when it starts, so that the link is shown
    before the task has ended.
    """

    @property
    def name(self) -> str:
        """Label of the button."""
        return "Run in store"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the page.

        It is empty when the operator ended before it knew its run.
        """
        return address_of_run(ti_key.dag_id, ti_key.run_id) if getattr(operator, "run_url", "") else ""


def address_of_run(dag_id: str, run_id: str) -> str:
    """Return the path of a DAG run's page, at its lineage."""
    return page_address(f"/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}#lineage")
