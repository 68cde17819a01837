"""``export-release``: one of the exports that a run's spec lists, once the run is the channel's release."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.errors import ConfigError
from pbg_tasks.tasks.announcing import is_announced
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.exchange import export

if TYPE_CHECKING:
    from pbg_tasks.config.exports import Export


def export_release(url: str, name: str) -> Result:
    """Write one export; what an interrupted try left at its destination is replaced.

    Args:
        url: of the run.
        name: of the export in the spec.

    Returns:
        Where it lies, and whether everybody was told of it (``announced``).

    Raises:
        ConfigError: the spec lists no such export, or the run was not published.
    """
    run = RunContext.open(url)
    listed = {export.name: export for export in run.spec.graph.exports}
    if name not in listed:
        raise ConfigError(f"{url}: its spec lists no export {name!r}; it lists {', '.join(listed) or 'none'}")
    task = listed[name].task
    return perform(task, url, partial(_export, chosen=listed[name])) | {"announced": is_announced(run, task)}


def _export(run: RunContext, *, chosen: Export) -> Result:
    published = run.require("publish")
    if not published["published"]:
        raise ConfigError(f"{run.url}: was not published ({published['reason']}), so it is not exported")
    done = export(
        chosen.format,
        f"{run.store.url}/{run.key(RunLayout.release)}",
        chosen.resolve(run.spec.graph.store, run=run.run_id, snapshot=run.spec.snapshot),
        options=chosen,
        overwrite=True,
    )
    return {key: value for key, value in done.items() if key not in {"task", "seconds"}}
