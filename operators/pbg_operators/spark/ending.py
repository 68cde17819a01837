"""Reason of an application's end, as an error of this package.

The command itself leaves its last line in a file (``ERROR_FILE``), where that can be read afterwards. Else an exit
status is all that a provider's exception has.
"""

from __future__ import annotations

import re

from pbg_operators.kubernetes.verdict import category_of
from pbg_tasks.errors import BY_KIND, PbgError

_LINE = re.compile(r"^error: (?P<kind>\w+): (?P<message>.*)$")
_STATUSES = (
    re.compile(r"User application exited with (?:status )?(\d+)"),  # YARN
    re.compile(r"ExitCode: (\d+)"),  # Kubeflow's Spark operator
    re.compile(r"Kubernetes spark exit code is: (\d+)"),
    re.compile(r"Error code is: (\d+)"),  # of spark-submit: in client mode that of the command
)
"""Exit status of the command in the texts of providers and clusters, the most exact first."""
_COMMAND = re.compile(r"Cannot execute: .*?(?=Error code is)", re.DOTALL)


def error_of(where: str, line: str, text: str) -> PbgError:
    """Return the error of a command that failed in an application.

    Args:
        where: what failed, for the message.
        line: last line that the command left; empty: none.
        text: of the exception by which the provider reported the failure.
    """
    if (found := _LINE.match(line)) is not None:
        return BY_KIND.get(found["kind"], PbgError)(f"{where}: {found['message']}")
    statuses = (int(found[1]) for pattern in _STATUSES if (found := pattern.search(text)) is not None)
    status = next((status for status in statuses if status), 1)
    reason = _COMMAND.sub("", text).strip() or "it printed nothing"
    return category_of(status)(f"{where} ended with status {status}, and left no error: {reason}")
