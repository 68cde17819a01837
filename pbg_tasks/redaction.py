"""Detection and removal of credentials in URLs and messages."""

from __future__ import annotations

import re

MASK = "***"
# Every pattern takes time linear in a text: messages quote names, which other people choose, and a long name must not
# stop a task. So each pattern is applied to one word at a time, where the first possible beginning decides.
_WORD = re.compile(r"\S+")
# A password may hold slashes, as the secret keys of AWS do, so a colon before the first slash may begin one. It ends at
# the last @, at which the text that this is applied to ends. The schemes in a Path have lost a slash.
_USER = re.compile(r"(?<![\w+.-])([a-z][a-z0-9+.-]*:/+)(?:[^\s/?#:]*:\S*|[^\s/?#]*)(?:@|%40)", re.IGNORECASE)
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_NAME = (
    r"(?:(?=[\w.-]*(?:signature|credential|secret|passw(?:or)?d|token|connection[_-]?string"
    r"|(?:access|account|api)[_-]?key))[\w.-]++|sig|pwd)"
)
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s&;,"'<>)}\]]+)"""
# name=value in a query or among options, and "name": "value" of a JSON object or a dict
_PAIR = re.compile(rf"""((?:^|[?&;,\s({{\[<"'`])["']?{_NAME}["']?\s*(?:=|:\s*(?=["']))\s*){_VALUE}""", re.IGNORECASE)
_PARAMETER = re.compile(rf"[?&;]{_NAME}=[^&]", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return a text without the credentials of its URLs and options.

    User names, passwords and signatures are replaced by ``***``.
    """
    return _PAIR.sub(rf"\g<1>{MASK}", _WORD.sub(_without_user, text))


def credentials_in(text: str) -> str | None:
    """Return the kind of credentials in a text; None without any."""
    if ":" not in text:  # neither a URL nor a part of one: most texts of a document
        return None
    dense = _dense(text)
    words = _WORD.findall(dense)
    if any(_USER.search(word[: _user_end(word)]) for word in words) and not dense.lower().startswith("file:///"):
        return "a user name or password"
    queries = (word.partition("://")[2] for word in words)
    return "a signature or key in its query" if any(map(_PARAMETER.search, queries)) else None


def shown(location: str) -> str:
    """Return a location without its credentials, for a message about them."""
    return redacted(_dense(location))


def _without_user(word: re.Match[str]) -> str:
    end = _user_end(word[0])
    return _USER.sub(rf"\g<1>{MASK}@", word[0][:end]) + word[0][end:]


def _user_end(word: str) -> int:
    """Return the end of the last sign of a user name.

    The sign is ``@`` or its code; 0 is returned where there is none.
    """
    return max(word.rfind(sign) + len(sign) if sign in word else 0 for sign in ("@", "%40"))


def _dense(text: str) -> str:
    """Fill the blanks of a text that is one URL.

    In a sentence a blank ends a URL; in a text that is a URL as a whole it is a part of it, such as of a password.
    """
    return re.sub(r"\s", "~", text) if _URL.match(text) else text
