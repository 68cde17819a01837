"""A notifier that appends its messages to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


class FileNotifier(BaseNotifier):
    """Appends one JSON line for each alert.

    Args:
        path: of the file.
        text: templated.
        conn_id: Airflow connection whose host is written, too.
    """

    template_fields = ("text",)

    def __init__(self, path: str, text: str, conn_id: str | None = None) -> None:
        super().__init__()
        self.path, self.text, self.conn_id = path, text, conn_id

    def notify(self, context: Context) -> None:
        """Write the line."""
        host = {} if self.conn_id is None else {"host": BaseHook.get_connection(self.conn_id).host}
        with Path(self.path).open("a") as file:
            file.write(json.dumps({**context["pbg"], "rendered": self.text, **host}) + "\n")
