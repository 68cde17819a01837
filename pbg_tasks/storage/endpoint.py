"""Rules for S3 endpoints: encrypted or near, and no metadata service.

A machine's metadata service gives out credentials of the machine, so requests must never go to it. The form of an
endpoint is checked when a client is made, the addresses of its name before the first request: a name that cannot be
resolved fails like an endpoint that cannot be reached.
"""

from __future__ import annotations

import os
import re
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pbg_tasks.errors import ConfigError
from pbg_tasks.redaction import credentials_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Address = IPv4Address | IPv6Address

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables that name the endpoint, by descending precedence."""
ALLOWED_VARIABLE = "PBG_ALLOW_HTTP_ENDPOINT"
"""Variable with hosts, separated by commas, that need no encryption wherever they are."""

_FORM = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?", re.IGNORECASE)
_PRIVATE = [
    ip_network(each) for each in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7")
]
# Networks of metadata services: the link-local ones, which AWS, Google, Azure and others use, then the exceptions: AWS
# by IPv6, Google by IPv6, Alibaba, Oracle, Azure.
_METADATA = [
    ip_network(each)
    for each in (
        *("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::/32"),
        *("100.100.100.200", "192.0.0.192", "168.63.129.16"),
    )
]
_TRANSLATED = [ip_network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")]
"""IPv6 networks whose last four bytes are the IPv4 address that is reached."""


class Endpoints:
    """Endpoints that one client may use.

    Args:
        environment: variables that go before those of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        allowed = {**os.environ, **(environment or {})}.get(ALLOWED_VARIABLE, "")
        self._allowed = frozenset(_plain(host) for host in allowed.split(",") if host.strip())
        self._passed: set[str] = set()

    def check_form(self, url: str, source: str) -> None:
        """Check all that can be checked without resolving a name.

        Args:
            url: of the endpoint.
            source: variable or key that holds it.

        Raises:
            ConfigError: it is no URL of a host, holds credentials or a query, or is an address that is not allowed.
                The message names the source, and the URL only where that holds nothing secret.
        """
        if "@" in url or credentials_in(url):
            raise ConfigError(
                f"{source} holds credentials: write the endpoint alone, and the keys into AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, a profile or the Airflow connection"
            )
        if not _FORM.fullmatch(url) or not _has_port(url):
            raise ConfigError(f"{source} is no endpoint: write https://host, with :port where it needs one")
        literal = _literal(_host(url))
        if literal is not None:
            self._check(url, [literal], source)

    def check_addresses(self, url: str, source: str = "the S3 endpoint") -> None:
        """Check the addresses of a request's host, once for each host.

        Raises:
            ConfigError: an address is not allowed.
            OSError: the name cannot be resolved.
        """
        parts, host = urlsplit(url), _host(url)
        place = f"{parts.scheme}://{parts.netloc}"
        if place in self._passed:
            return
        try:
            addresses = _resolve(host)
        except OSError:
            from urllib.request import getproxies, proxy_bypass  # not above: it imports an HTTP client

            # A proxy may resolve the name. Without encryption it must be resolved here, to find out that it is near.
            proxied = parts.scheme in getproxies() and not proxy_bypass(host)
            if proxied and (parts.scheme == "https" or host in self._allowed):
                return
            raise
        self._check(place, addresses, source)
        self._passed.add(place)

    def _check(self, url: str, addresses: list[Address], source: str) -> None:
        if any(_is_in(address, _METADATA) for address in addresses):
            raise ConfigError(
                f"{source}: {url} is a link-local address or a metadata service of a cloud, which is no store; "
                "name the server itself"
            )
        host = _host(url)
        if urlsplit(url).scheme.lower() == "https" or host in self._allowed:
            return
        if not all(_is_in(address, _PRIVATE) for address in addresses):
            raise ConfigError(
                f"{source}: {url} is not encrypted and not on a private network; use https, or allow it with "
                f"{ALLOWED_VARIABLE}={host} (allow_http_endpoint in the extra of an Airflow connection)"
            )


def _host(url: str) -> str:
    return _plain(urlsplit(url).hostname or "")


def _has_port(url: str) -> bool:
    """Return whether a URL's port, if it has one, is valid."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _plain(host: str) -> str:
    return host.strip().strip("[]").rstrip(".").lower()


def _literal(host: str) -> Address | None:
    """Return the address that a host is; None for a name.

    All notations of an address count.
    """
    try:
        if ":" in host:
            return _reached(ip_address(host))
        return IPv4Address(socket.inet_aton(host))  # also octal, hexadecimal, and fewer than four numbers
    except (OSError, ValueError):
        return None


def _resolve(host: str) -> list[Address]:
    """Return the addresses of a host.

    Raises:
        OSError: it has none.
    """
    literal = _literal(host)
    if literal is not None:
        return [literal]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a part of the name is empty or too long
        raise OSError(f"{host!r} is no host name") from error
    return [_reached(ip_address(str(entry[4][0]).partition("%")[0])) for entry in found]


def _reached(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address contains, else the address."""
    if isinstance(address, IPv4Address) or address.is_loopback:
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and _is_in(address, _TRANSLATED):
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


def _is_in(address: Address, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)
