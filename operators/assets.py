"""What the DAGs of a graph read and write, as Airflow's assets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.sdk import Asset

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.exports import Export


def edges_asset(spec: GraphSpec) -> Asset:
    """Return the snapshots of a graph.

    Its URI ends with the graph's name: Airflow takes two assets of one URI for a mistake and refuses the tasks of one,
    yet two graphs may well be made of the same snapshots, each begun by its own events.

    Raises:
        ConfigError: they are at no place that Airflow can name.
    """
    return _asset(f"{spec.graph}_edges", edges_place(spec), "edges", query=f"?graph={spec.graph}")


def edges_place(spec: GraphSpec) -> str:
    """Return what all snapshots of a graph have in common of their location."""
    return spec.snapshots.location.partition("{snapshot}")[0]


def channel_asset(spec: GraphSpec) -> Asset:
    """Return the channel that readers of a graph follow.

    Raises:
        ConfigError: it is at no place that Airflow can name.
    """
    return _asset(f"{spec.graph}_{spec.channel}", f"{spec.store.rstrip('/')}/channels/{spec.channel}", "embeddings")


def export_asset(spec: GraphSpec, export: Export) -> Asset:
    """Return the place that all nights' exports of one name share.

    Raises:
        ConfigError: it is at no place that Airflow can name.
    """
    return _asset(f"{spec.graph}_{spec.channel}_{export.name}", export.place(spec.store), "exports")


def _asset(name: str, place: str, group: str, *, query: str = "") -> Asset:
    uri = place if urlsplit(place).scheme else Path(place).absolute().as_uri()
    try:
        return Asset(name=name, uri=uri + query, group=group)
    except ValueError as error:
        raise ConfigError(f"{place!r} is no place that can be an Airflow asset: {error}") from None
