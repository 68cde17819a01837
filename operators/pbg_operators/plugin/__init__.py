"""Pages of runs and nights inside Airflow.

They are a tab on the DAG, a tab on the run, and an entry of the navigation. Every Airflow process loads plugins, and
only the API server serves pages; so the application is made at its first request, and this module imports nothing for
it. The plugin also suggests snapshots in Airflow's form of a night, and registers ``PublishedBy``,
``SnapshotTimetable`` and ``listener`` with the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from pbg_operators.deadline import PublishedBy
from pbg_operators.link import PREFIX, page_address
from pbg_operators.plugin import listener
from pbg_operators.plugin.suggestions import SuggestSnapshots
from pbg_operators.timetable import SnapshotTimetable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the pages."""
    from pbg_operators.plugin.app import make_app

    await make_app()(scope, receive, send)


APPS: list[dict[str, Any]] = [{"app": application, "url_prefix": PREFIX, "name": "PBG"}]
VIEWS: list[dict[str, Any]] = [
    {"name": "Embeddings", "href": page_address("/"), "destination": "nav", "category": "browse", "url_route": "pbg"},
    {"name": "Nights", "href": page_address("/dags/{DAG_ID}"), "destination": "dag", "url_route": "pbg-nights"},
    {
        "name": "Embedding",
        "href": page_address("/dags/{DAG_ID}/runs/{RUN_ID}"),
        "destination": "dag_run",
        "url_route": "pbg-run",
    },
]
MIDDLEWARES: list[dict[str, Any]] = [
    {"middleware": SuggestSnapshots, "args": [], "kwargs": {}, "name": "PBG: snapshots in the form"}
]


class PbgPlugin(AirflowPlugin):
    """Plugin with pages, suggestions, the reference of deadlines, and the timetable."""

    name = "pbg"

    def __init__(self) -> None:
        self.fastapi_apps = APPS
        self.fastapi_root_middlewares = MIDDLEWARES
        self.external_views = VIEWS
        self.deadline_references = [PublishedBy]
        self.timetables = [SnapshotTimetable]
        self.listeners = [listener]
