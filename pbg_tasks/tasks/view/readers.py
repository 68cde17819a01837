"""Readers of releases: channels, shares of their keys, and services with pins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pbg_tasks.errors import FormatError, InputError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.service_pins import service_pins
from pbg_tasks.tasks.view.tables import draw, history_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.publish import Release
    from pbg_tasks.publish.release import Pointer
    from pbg_tasks.report.documents import ReaderPart
    from pbg_tasks.tasks.view.summary import ReaderRow, ReleaseRow

Readers = dict[tuple[str, int], list["ReaderRow"]]
"""Readers of a release, by its channel and number."""


def readers_of(channel: Channel, pointer: Pointer) -> Readers:
    """Return the readers that a channel's pointer and pins send to releases.

    The release that a share of the keys reads is of another channel.
    """
    found: Readers = {}
    canary = pointer.canary
    if pointer.release is not None:
        share = 1.0 if canary is None else 1.0 - canary.share
        row = _row(channel.name, share, pointer.by, pointer.at or _moved(pointer))
        found.setdefault((channel.name, pointer.release.seq), []).append(row)
    if canary is not None:
        row = _row(channel.name, canary.share, canary.by, canary.at)
        found.setdefault((canary.channel, canary.seq), []).append(row)
    for pin in service_pins(channel):
        row = _row(pin.service, None, pin.owner, pin.at)
        row["until"], row["expired"] = None if pin.until is None else pin.until.isoformat(), pin.is_expired()
        found.setdefault((channel.name, pin.seq), []).append(row)
    return found


def _moved(pointer: Pointer) -> datetime | None:
    """Return the time of the pointer's write; a night records none."""
    modified = None if pointer.info is None else pointer.info.modified
    return None if modified is None else datetime.fromtimestamp(modified, UTC)


def _row(reader: str, share: float | None, owner: str | None, since: datetime | None) -> ReaderRow:
    return {
        "reader": reader,
        "share": share,
        "owner": owner,
        "since": None if since is None else since.isoformat(timespec="seconds"),
        "until": None,
        "expired": False,
    }


def release_readers(channels: Sequence[Channel], known: Mapping[tuple[str, int], Release]) -> list[ReaderPart]:
    """Return the readers of releases as the pages show them.

    A pointer or pin that is damaged is a reader of an unknown release, so that pages can show it beside the others.

    Args:
        channels: whose pointers and pins are followed, of one store.
        known: releases that were read, by channel and number; others are read.
    """
    found: list[ReaderPart] = []
    for channel in channels:
        try:
            readers = readers_of(channel, channel.current())
        except FormatError as error:
            found.append(_damaged(channel.name, str(error)))
            continue
        for (name, seq), rows in readers.items():
            release = known.get((name, seq)) or _release(Channel(channel.store, name), seq)
            origin = None if release is None else release.promoted
            found += [
                {
                    "reader": row["reader"],
                    "share": row["share"],
                    "channel": name,
                    "release": seq,
                    "snapshot": None if release is None else release.snapshot,
                    "promoted_from": None if origin is None else f"{origin.channel} {origin.seq}",
                    "owner": row["owner"],
                    "since": None if row["since"] is None else datetime.fromisoformat(row["since"]).timestamp(),
                    "until": row["until"],
                    "expired": row["expired"],
                }
                for row in rows
            ]
    return found


def _damaged(channel: str, reason: str) -> ReaderPart:
    return {
        "reader": reason,
        "share": None,
        "channel": channel,
        "release": None,
        "snapshot": "unknown",
        "promoted_from": None,
        "owner": None,
        "since": None,
        "until": None,
        "expired": False,
    }


def _release(channel: Channel, seq: int) -> Release | None:
    try:
        return channel.release(seq)
    except InputError:  # removed meanwhile
        return None


def releases_text(listed: Sequence[ReleaseRow]) -> str:
    """Draw the releases of a graph's channels, and their readers below."""
    names = list(dict.fromkeys(row["channel"] for row in listed))
    parts = []
    for name in names:
        drawn = history_table([row for row in listed if row["channel"] == name])
        parts.append(drawn if len(names) == 1 else f"channel {name}\n\n{drawn}")
    if any(row["readers"] for row in listed):
        parts.append(readers_table(listed, with_channel=len(names) > 1))
    return "\n\n".join(parts) or "no release yet"


def readers_table(listed: Sequence[ReleaseRow], *, with_channel: bool) -> str:
    """Draw the readers of releases, one row a reader."""
    rows = [("reader", ["release", "since", "age", "by", "until"])]
    for release in listed:
        number = f"{release['channel']} {release['release']}" if with_channel else f"{release['release']}"
        for reader in release["readers"]:
            over = f"{reader['until']}, over" if reader["expired"] else reader["until"] or "-"
            since = reader["since"]
            cells = [number, "-" if since is None else since[:10], _age(since), reader["owner"] or "a night", over]
            rows.append((_name(reader), cells))
    return draw(rows)


def _name(reader: ReaderRow) -> str:
    share = reader["share"]
    if share is None:
        return reader["reader"]
    return f"channel {reader['reader']}" + ("" if share == 1 else f", {share:.4g} of its keys")


def _age(since: str | None) -> str:
    return "-" if since is None else f"{(datetime.now(UTC) - datetime.fromisoformat(since)).days} d"
