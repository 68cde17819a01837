"""Vector stores into which releases are filled.

A sink is a class with a connection to a store (``Tables``); ``tasks.exchange.fill`` fills, checks and serves tables by
these methods alone. Packages add others by entry points of the group ``pbg_tasks.sinks``.
"""

from __future__ import annotations

from pbg_tasks.config.sinks import DeltaSinkOptions, SinkOptions
from pbg_tasks.publish.sinks.base import CopiedTables, Rows, Sink, TableRecord, Tables
from pbg_tasks.publish.sinks.filed import FiledTables
from pbg_tasks.publish.sinks.registry import open_sink, sink_options

__all__ = [
    "CopiedTables",
    "DeltaSinkOptions",
    "FiledTables",
    "Rows",
    "Sink",
    "SinkOptions",
    "TableRecord",
    "Tables",
    "open_sink",
    "sink_options",
]
