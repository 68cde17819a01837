"""Pins of services, which read another release than their channel serves.

A pin is one object a service, which is replaced by compare-and-swap. It is beside the pins of ``retention``, which keep
a release and name no reader.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import Stamped, encode_unique, find_document
from pbg_tasks.config.names import Name, check_name
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.publish.release import Person, check_person

if TYPE_CHECKING:
    from pbg_tasks.publish.channel import Channel
    from pbg_tasks.storage import ObjectInfo

_FILE = re.compile(r"for-(.+)\.json")


class ServicePin(Stamped):
    """Release that a service reads until it is unpinned.

    Attributes:
        service: its name.
        seq: number of the release in the channel.
        run: that made the release.
        owner: person or team to ask before the release goes.
        at: time of the pin, UTC.
        until: last day on which the owner needs it; None: not known. The pin holds after that day, too.
    """

    format: Literal[1] = 1
    service: Name
    seq: int
    run: str
    owner: Person
    at: datetime
    until: date | None = None

    def is_expired(self) -> bool:
        """Return whether its last day is over."""
        return self.until is not None and self.until < datetime.now(UTC).date()


def pin_service(channel: Channel, service: str, seq: int, *, owner: str, until: date | None = None) -> ServicePin:
    """Let a service read a release; a pin of before is replaced.

    The release of that pin is held, for the service still reads it. The same pin again changes nothing.

    Raises:
        ConfigError: service or owner cannot have that name, or the last day is over.
        InputError: there is no such release.
        ConflictError: the release is being removed, or another process pinned the service meanwhile.
    """
    check_name(service, "service")
    check_person(owner, "--owner")
    if until is not None and until < datetime.now(UTC).date():
        raise ConfigError(f"--until {until}: this day is over; give a later one, or none")
    release = channel.release(seq)
    hold(channel.store, run_with(release.directory, release.run))
    channel.release(seq)  # read again, because it may have been removed before it was held
    found, info = _read(channel, service)
    if found is not None and (found.seq, found.owner, found.until) == (seq, owner, until):
        return found
    wanted = ServicePin(service=service, seq=seq, run=release.run, owner=owner, at=datetime.now(UTC), until=until)
    if found is not None:
        _hold_left(channel, found)
    try:
        channel.store.swap(_key(channel, service), encode_unique(wanted), expected=info)
    except ConflictError:
        raise ConflictError(
            f"{channel.store.url}/{_key(channel, service)}: another process pinned {service!r} meanwhile; look at "
            "`pbg releases` and try again"
        ) from None
    return wanted


def unpin_service(channel: Channel, service: str) -> None:
    """Remove the pin of a service, which follows the channel then.

    The release of the pin is held, for the service still reads it.
    """
    check_name(service, "service")
    with suppress(FormatError):  # a damaged pin has to be removable
        if (pin := _read(channel, service)[0]) is not None:
            _hold_left(channel, pin)
    channel.store.delete(_key(channel, service))


def pin_of(channel: Channel, service: str) -> ServicePin | None:
    """Return the pin of a service; None without one.

    Raises:
        ConfigError: no service can have that name.
        FormatError: the pin is damaged.
    """
    check_name(service, "service")
    return _read(channel, service)[0]


def service_pins(channel: Channel) -> list[ServicePin]:
    """Return the pins of all services, by name.

    Raises:
        FormatError: one of them is damaged, so that the release that it needs is unknown.
    """
    prefix = f"channels/{channel.name}/pins/"
    names = (_FILE.fullmatch(info.key.removeprefix(prefix)) for info in channel.store.list(prefix))
    found = (_read(channel, name[1])[0] for name in names if name is not None)
    return sorted((pin for pin in found if pin is not None), key=lambda pin: pin.service)


def _hold_left(channel: Channel, pin: ServicePin) -> None:
    """Hold the release that a pin leaves.

    One that is lost or going holds up nothing.
    """
    with suppress(InputError, FormatError, ConflictError):
        release = channel.release(pin.seq)
        hold(channel.store, run_with(release.directory, release.run))


def _read(channel: Channel, service: str) -> tuple[ServicePin | None, ObjectInfo | None]:
    return find_document(ServicePin, channel.store, _key(channel, service)) or (None, None)


def _key(channel: Channel, service: str) -> str:
    return f"channels/{channel.name}/pins/for-{service}.json"
