"""Snapshots that are there, suggested by Airflow's form of a night.

Airflow fixes a form when it parses the DAG's file. A list of snapshots in the DAG would be read from the store at every
parse, and each snapshot would make another version of the DAG. So the list is added to the answer of which Airflow's UI
makes the form: plugins may stand before all its routes. Every Airflow process loads this module, which therefore
imports little. Where the store does not answer in time, the form has the list of before, or none.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anyio
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pbg_operators.plugin.pages import Pages

DETAILS = re.compile(r"/api/v2/dags/([\w.\-]{1,250})/details$")
PATIENCE = 4.0
"""Most seconds for which an answer waits for a store; the first one waits for imports, too."""
POLL = 0.05
"""Number of seconds between two looks at a list that another answer waits for."""
PAUSE = 60.0
"""Number of seconds after which a store that failed is asked again."""
THREADS = 4
"""Number of stores that are asked at a time, so that those which hang take few threads of Airflow."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Known:
    """Snapshots of a DAG, as last listed; the newest first.

    Attributes:
        keys: of the snapshots.
        until: monotonic seconds, before which they are not listed anew, as that failed.
        awaited: whether an answer waits for a thread that lists them.
        running: whether the thread does so.
        since: monotonic seconds at which the answer began to wait.
    """

    keys: list[str] = field(default_factory=list)
    until: float = 0.0
    awaited: bool = False
    running: bool = False
    since: float = 0.0

    @property
    def listing(self) -> bool:
        """Whether they are listed at present, or about to be."""
        return self.awaited or self.running

    def list_anew(self, dag_id: str) -> None:
        """List the snapshots; an error is logged, and leaves those of before."""
        self.running = True
        try:
            self.keys = listed(dag_id)
        except Exception as error:  # noqa: BLE001 - Airflow's own answer must not fail by it
            self.until = time.monotonic() + PAUSE
            _log.warning("the form of %s lists no new snapshots: %s", dag_id, error)
        finally:
            self.running = False


class SuggestSnapshots:
    """Middleware that adds snapshots to Airflow's details of a DAG.

    Only a DAG of nights has a form with a snapshot.

    Args:
        app: what answers the requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[str, Known] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        asked = DETAILS.search(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if asked is None:
            await self._app(scope, receive, send)
            return
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        await self._app(scope, receive, keep)
        for message in await self._with_snapshots(asked[1], answer):
            await send(message)

    async def _with_snapshots(self, dag_id: str, answer: list[Message]) -> list[Message]:
        """Return an answer with the snapshots in it, or unchanged."""
        if not answer or answer[0].get("status") != HTTPStatus.OK:
            return answer
        details = form_of(b"".join(message.get("body", b"") for message in answer))
        if details is None or not (keys := await self._keys(dag_id)):
            return answer
        details["params"]["snapshot"]["schema"]["examples"] = keys
        body = json.dumps(details).encode()
        headers = [(name, value) for name, value in answer[0]["headers"] if name.lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        return [{**answer[0], "headers": [*headers, length]}, {"type": "http.response.body", "body": body}]

    async def _keys(self, dag_id: str) -> list[str]:
        """Return the keys of a DAG's snapshots that are known in time."""
        import anyio

        known = self._known.setdefault(dag_id, Known())
        under_way = sum(each.listing for each in self._known.values())
        if not known.listing and known.until <= time.monotonic() and under_way < THREADS:
            known.awaited, known.since = True, time.monotonic()
            try:
                with anyio.move_on_after(PATIENCE):
                    await anyio.to_thread.run_sync(known.list_anew, dag_id, abandon_on_cancel=True, limiter=_limiter())
            finally:  # a wait that is over before its thread began, as where the loop stood still, leaves none
                known.awaited = False
        elif known.listing:  # for another answer: the UI asks for the page of a DAG, and again for its form
            with anyio.move_on_after(known.since + PATIENCE - time.monotonic()):
                while known.listing:  # noqa: ASYNC110 - a thread ends it, of an event loop that may be gone
                    await anyio.sleep(POLL)
        return known.keys


def form_of(body: bytes) -> dict[str, Any] | None:
    """Return the details of a DAG whose form has a snapshot.

    A field that a DAG of a user's own has by this name, with another type or a list, is left alone.
    """
    from pbg_tasks.config.airflow import NIGHTS_TAG

    try:
        details: dict[str, Any] = json.loads(body)
        schema, tagged = details["params"]["snapshot"]["schema"], {tag["name"] for tag in details["tags"]}
        ours = NIGHTS_TAG in tagged and "string" in schema["type"] and not {"enum", "examples"} & schema.keys()
    except (ValueError, KeyError, TypeError):
        return None
    return details if ours else None


def listed(dag_id: str) -> list[str]:
    """Return the keys of a DAG's newest snapshots, the newest first.

    Raises:
        StorageError: they cannot be listed.
    """
    from pbg_operators.plugin import database
    from pbg_operators.plugin.begin import SHOWN, source_of
    from pbg_tasks.config.nights import snapshot_order
    from pbg_tasks.errors import StorageError

    asked = database.snapshots_of(dag_id)
    if asked.named:
        return []
    keys, problem = _pages().by(asked.connection).snapshots(source_of(asked.source))
    if problem is not None:
        raise StorageError(problem)
    return sorted(keys, key=snapshot_order, reverse=True)[:SHOWN]


@functools.cache
def _pages() -> Pages:
    from pbg_operators.plugin.pages import Pages

    return Pages()


@functools.cache
def _limiter() -> anyio.CapacityLimiter:
    """Return a limiter of threads that is never full."""
    import anyio

    return anyio.CapacityLimiter(THREADS)
