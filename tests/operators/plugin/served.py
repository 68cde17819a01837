"""The pages on a port, for a browser."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.airflow_home import use_private_airflow

use_private_airflow()

from pbg_operators.plugin import attempts, database, routes  # noqa: E402 - Airflow's home is chosen first
from pbg_operators.plugin.pages import Pages  # noqa: E402, F401 - for tests that hold its answers
from pbg_tasks.errors import NotFoundError  # noqa: E402
from tests.operators.plugin.permitted import permitted_app  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pbg_operators.plugin.attempts import Attempt


@contextmanager
def served(run: str, *, graph: str = "toy", ended: Sequence[Attempt] = ()) -> Iterator[str]:
    """Serve the pages of a graph to a user with all rights.

    Args:
        run: URL of the graph's last run.
        graph: its name; its DAG is ``reembed_{graph}``.
        ended: other runs of the DAG, which planned nothing.
    """
    import uvicorn

    dag = f"reembed_{graph}"
    planned = [database.Planned(run, graph=graph, store=run.rpartition("/runs/")[0])]

    def planned_by(_: str, run_id: str) -> list[database.Planned]:
        if any(each.run_id == run_id for each in ended):
            raise NotFoundError(f"run {run_id!r} planned nothing")
        return planned

    server = uvicorn.Server(uvicorn.Config(permitted_app(), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    rights = SimpleNamespace(get_authorized_dag_ids=lambda **_: {dag})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "last_planned", lambda _: planned)
        patch.setattr(database, "planned", planned_by)
        patch.setattr(database, "graph_dags", lambda _: {dag: graph})
        patch.setattr(database, "latest_place", lambda _: (graph, planned[0].store))
        patch.setattr(database, "snapshots_of", lambda _: database.Snapshots("", None, named=True))
        patch.setattr(attempts, "schedules", lambda _: [])
        patch.setattr(attempts, "places", lambda: {dag: (graph, planned[0].store, None)})
        patch.setattr(attempts, "attempts", lambda _, of=None: [each for each in ended if of in {None, each.run_id}])
        patch.setattr(routes, "get_auth_manager", lambda: rights)
        thread.start()
        wait_until(lambda: server.started, seconds=60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join()
