"""A notifier that appends its messages to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


class FileNotifier(BaseNotifier):
    """Appends one JSON line for each alert.

    Args:
        path: of the file.
        text: templated.
    """

    template_fields = ("text",)

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context: Context) -> None:
        """Write the line."""
        with Path(self.path).open("a") as file:
            file.write(json.dumps({**context["pbg"], "rendered": self.text}) + "\n")
