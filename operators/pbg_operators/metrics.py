"""Figures of tasks as metrics of Airflow, beside its own ones.

They go where ``[metrics]`` of Airflow's config sends its metrics: to StatsD, Datadog or OpenTelemetry. Each is a gauge,
``pbg.mrr`` with the tags ``graph`` and ``task``. Plain StatsD has no tags: there it is ``pbg.{graph}.{task}.mrr``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import JsonValue

    Tags = dict[str, str]

OF_EVERY_TASK = {
    "seconds": ("seconds",),
    "cpu_seconds": ("usage", "cpu_seconds"),
    "memory_bytes": ("usage", "memory_bytes"),
    "store_bytes_read": ("usage", "store_bytes_read"),
    "store_bytes_written": ("usage", "store_bytes_written"),
}
FIGURES: dict[str, dict[str, tuple[str, ...]]] = {
    "validate": {"edges": ("edges",)},
    "partition": {"entities": ("entities", "total"), "new_entities": ("entities", "new")},
    "bucket": {"train_edges": ("edges", "train")},
    "train": {"edges_per_second": ("edges_per_second",), "loss": ("loss",), "epochs": ("epochs",)},
    "eval": {
        "mrr": ("filtered", "mrr"),
        "hits1": ("filtered", "hits1"),
        "hits10": ("filtered", "hits10"),
        "popularity_mrr": ("popularity", "mrr"),
        "mrr_change": ("against", "difference", "mrr"),
    },
    "gate": {"passed": ("passed",)},
    "publish": {"published": ("published",), "release": ("release",)},
}
"""Name of each metric, and its path in a task's result."""
OF_TYPES = {"cosine": ("cosine", "mean"), "overlap": ("overlap", "mean")}
"""Same for each entity type of ``drift``, with a tag ``type``."""
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
REFUSED = "refused"
"""Metric that counts nights that a task refused."""


def send(graph: str, task: str, result: Mapping[str, JsonValue]) -> None:
    """Send the figures of a task's result.

    Args:
        graph: name of the graph.
        task: of the chain.
        result: what its command returned.
    """
    from pbg_operators.internals import Stats

    for name, value, further in figures(task, result):
        metric, tags = _named(graph, task, name, further)
        Stats.gauge(metric, value, tags=tags)


def count_refusal(graph: str, task: str) -> None:
    """Count a night that a task refused."""
    from pbg_operators.internals import Stats

    metric, tags = _named(graph, task, REFUSED, {})
    Stats.incr(metric, tags=tags)


def figures(task: str, result: Mapping[str, JsonValue]) -> Iterator[tuple[str, float, Tags]]:
    """Yield name, value and further tags of each figure."""
    for name, path in (OF_EVERY_TASK | FIGURES.get(task, {})).items():
        yield from ((name, value, {}) for value in _number(result, path))
    types = result.get("types") if task == "drift" else None
    if isinstance(types, dict):
        for entity, found in types.items():
            for name, path in OF_TYPES.items():
                yield from ((name, value, {"type": entity}) for value in _number(found, path))


def _named(graph: str, task: str, name: str, tags: Tags) -> tuple[str, Tags]:
    tags = {"graph": graph, "task": task} | tags
    plain = conf.getboolean("metrics", "statsd_on") and not (
        conf.getboolean("metrics", "statsd_datadog_enabled") or conf.getboolean("metrics", "statsd_influxdb_enabled")
    )
    if not plain:
        return f"pbg.{name}", tags
    return ".".join(["pbg", *(_UNFIT.sub("_", tag) for tag in tags.values()), name]), {}


def _number(document: Any, path: tuple[str, ...]) -> list[float]:  # noqa: ANN401 - any JSON value
    """Return the number at a path; empty where there is none."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return [float(document)] if isinstance(document, int | float) else []
