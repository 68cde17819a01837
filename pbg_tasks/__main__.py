"""``python -m pbg_tasks`` is the ``pbg`` command."""

from __future__ import annotations

import gc

gc.disable()  # until `main` sets how often: what is imported until then stays

from pbg_tasks.cli import command  # noqa: E402 - as above

command()
