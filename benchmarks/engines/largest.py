"""Largest tasks of applications on Spark, from their event logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import duckdb

if TYPE_CHECKING:
    from pathlib import Path

_STEPS = {"Window": "window", "MapInArrow": "Python"}
"""Steps of Spark that name the kind of a stage."""
_LARGEST = """
    WITH events AS (FROM read_ndjson_objects(?, filename = true, maximum_object_size = 1000000000)),
    stages AS (
        SELECT filename AS application, json -> 'Stage Info' ->> 'Stage ID' AS stage,
            array_to_string(json_extract_string(json, '$."Stage Info"."RDD Info"[*].Scope'), ' ') AS scopes
        FROM events WHERE json ->> 'Event' = 'SparkListenerStageCompleted'
    ),
    tasks AS (
        SELECT filename AS application, json ->> 'Stage ID' AS stage, json -> 'Task Metrics' AS metrics,
            metrics -> 'Shuffle Read Metrics' AS read
        FROM events WHERE json ->> 'Event' = 'SparkListenerTaskEnd'
    ),
    sizes AS (
        SELECT application, stage, count(*) AS tasks, max((read ->> 'Total Records Read')::BIGINT) AS rows,
            max((read ->> 'Remote Bytes Read')::BIGINT + (read ->> 'Local Bytes Read')::BIGINT) AS bytes,
            max((metrics ->> 'Disk Bytes Spilled')::BIGINT) AS spilled
        FROM tasks GROUP BY ALL
    )
    SELECT kind, max(tasks), max(rows), max(bytes), max(spilled)
    FROM (SELECT {kind} AS kind, * FROM sizes JOIN stages USING (application, stage))
    GROUP BY kind HAVING max(rows) > 0 ORDER BY max(rows) DESC
"""


class Largest(NamedTuple):
    """Largest task of stages of one kind.

    Attributes:
        kind: steps of the stages.
        tasks: number of tasks in the largest stage.
        rows: that one task got from a shuffle.
        bytes: of these rows, compressed as they are shuffled.
        spilled: bytes that one task wrote to disk for want of memory.
    """

    kind: str
    tasks: int
    rows: int
    bytes: int
    spilled: int


def largest_tasks(logs: Path) -> list[Largest]:
    """Return the largest task of each kind of stage.

    Stages that read no shuffle are left out.

    Args:
        logs: folder of event logs.
    """
    files = [str(path) for path in sorted(logs.rglob("events_*"))]
    steps = (f"""if(scopes LIKE '%"name":"{name}%', '{step}', NULL)""" for name, step in _STEPS.items())
    kind = f"coalesce(nullif(concat_ws(', ', {', '.join(steps)}), ''), 'other')"
    with duckdb.connect() as connection:
        return [Largest(*row) for row in connection.execute(_LARGEST.format(kind=kind), [files]).fetchall()]
