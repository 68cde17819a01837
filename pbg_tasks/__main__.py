"""``python -m pbg_tasks`` is the ``pbg`` command."""

from __future__ import annotations

from pbg_tasks.cli import command

command()
