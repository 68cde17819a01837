"""Detection and removal of credentials in URLs and messages."""

from __future__ import annotations

import re

MASK = "***"
# A password may hold slashes, as the secret keys of AWS do: a colon before the first slash may begin one, and it ends
# at the last @. The schemes of a Path have lost a slash.
_USER = re.compile(r"(?<![\w+.-])([a-z][a-z0-9+.-]*:/+)(?:[^\s/?#:]*:\S*|[^\s/?#]*)(?:@|%40)", re.IGNORECASE)
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_NAME = (
    r"(?:[\w.-]*(?:signature|credential|secret|passw(?:or)?d|token|access[_-]?key|accesskeyid|api[_-]?key)[\w.-]*"
    r"|sig|pwd)"
)
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s&;,"'<>)}\]]+)"""
# name=value in a query or among options, and "name": "value" of a JSON object or a dict
_PAIR = re.compile(rf"""((?:^|[?&;,\s({{\[<"'`])["']?{_NAME}["']?\s*(?:=|:\s*(?=["']))\s*){_VALUE}""", re.IGNORECASE)
_QUERY = re.compile(rf"://\S*[?&;]{_NAME}=[^&\s]", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return a text without the credentials of its URLs and options.

    User names, passwords and signatures are replaced by ``***``.
    """
    return _PAIR.sub(rf"\g<1>{MASK}", _USER.sub(rf"\g<1>{MASK}@", text))


def credentials_in(text: str) -> str | None:
    """Return the kind of credentials in a text; None without any."""
    dense = _dense(text)
    if _USER.search(dense) and not dense.lower().startswith("file:///"):
        return "a user name or password"
    return "a signature or key in its query" if _QUERY.search(dense) else None


def shown(location: str) -> str:
    """Return a location without its credentials, for a message about them."""
    return redacted(_dense(location))


def _dense(text: str) -> str:
    """Fill the blanks of a text that is one URL.

    In a sentence a blank ends a URL; in a text that is a URL as a whole it is a part of it, such as of a password.
    """
    return re.sub(r"\s", "~", text) if _URL.match(text) else text
