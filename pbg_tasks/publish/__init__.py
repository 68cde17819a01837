"""Releases: publish and roll back by one swap of a channel's pointer."""

from __future__ import annotations

from pbg_tasks.publish.channel import Channel, channel_names
from pbg_tasks.publish.release import Current, Release

__all__ = ["Channel", "Current", "Release", "channel_names"]
