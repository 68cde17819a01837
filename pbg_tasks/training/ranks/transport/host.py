"""Address under which other ranks reach this process."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError, RankLostError

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOPBACK = "127.0.0.1"
VARIABLE = "GLOO_SOCKET_IFNAME"

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
_IFREQ = struct.Struct("256s")
_ADDRESS = slice(20, 24)  # within ifreq: sockaddr_in.sin_addr
_ANY_PORT = 9


def own_host(towards: str | None) -> str:
    """Return this machine's address for other ranks.

    It is that of the interface in ``GLOO_SOCKET_IFNAME``, or else of the interface on the route to rank 0.

    Args:
        towards: host name or address of rank 0; None where all ranks run on one machine.

    Raises:
        ConfigError: there is no such interface, or it has no IPv4 address.
        RankLostError: the host is unknown, or no route leads to it.
    """
    if name := os.environ.get(VARIABLE, "").split(",")[0]:
        host = _address_of(name)
        if host is None:
            names = ", ".join(known for _, known in socket.if_nameindex())
            raise ConfigError(f"{VARIABLE}: there is no interface {name!r} with an IPv4 address; there are: {names}")
        return host
    return LOOPBACK if towards is None else _local_end(towards)


def common_host(own: str, others: Iterable[str]) -> str:
    """Return ``own``, unless other machines cannot reach it.

    In that case the address on the route to one of them is returned.

    Many systems give their own host name an address of the loopback interface, so that rank 0 and its neighbours would
    use it, where no other machine reaches them.
    """
    if not is_loopback(own):
        return own
    return next((_local_end(other) for other in others if not is_loopback(other)), own)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is one of the loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _local_end(towards: str) -> str:
    """Return the local address of a route.

    Connecting a UDP socket reads the routing table and sends nothing.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(towards, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RankLostError(f"no way leads to rank 0 at {towards}: {error.strerror}") from None


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[_ADDRESS])
