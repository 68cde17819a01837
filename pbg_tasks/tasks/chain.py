"""``run``: the whole chain of one snapshot, without a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.tasks.bucket import bucket
from pbg_tasks.tasks.evaluate import evaluate
from pbg_tasks.tasks.gate import gate
from pbg_tasks.tasks.partition import partition
from pbg_tasks.tasks.plan import plan
from pbg_tasks.tasks.preserve import preserve
from pbg_tasks.tasks.publish import publish
from pbg_tasks.tasks.show import show
from pbg_tasks.tasks.train import train
from pbg_tasks.tasks.validate import validate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pbg_tasks.tasks.context import Result

# What follows `plan`, in order; each takes the run's URL and nothing else.
TASKS: dict[str, Callable[[str], Result]] = {
    "validate": validate,
    "partition": partition,
    "bucket": bucket,
    "train": train,
    "preserve": preserve,
    "eval": evaluate,
    "gate": gate,
    "publish": publish,
}


def run_chain(spec: Path, snapshot: str, **options: Any) -> Result:  # noqa: ANN401 - plan's options
    """Plan a run and do all its tasks; a second call finds everything done.

    Returns:
        The run's summary, as ``show`` gives it.
    """
    url = plan(spec, snapshot, **options)["run"]
    for task in TASKS.values():
        task(url)
    return show(url)
