"""Parts that installed packages add by entry point.

Each kind of part has a group of entry points (docs/extending.md and docs/plugins.md show one of each).

A name is looked up in the metadata of packages alone: nothing is imported before a part is used, so that configs are
read quickly and a package that is at fault stops only the commands that need it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pbg_tasks.errors import ConfigError, PbgError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import EntryPoint

Made = TypeVar("Made")


AT_WORK = (PbgError, OSError, MemoryError)
"""Errors of a part at work that are no fault of its package: bad input, a store or disk that fails."""


class PluginError(Exception):
    """Fault of a package's part.

    The text continues a sentence that begins with the part's name.
    """


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of part that a config or a command names.

    Attributes:
        noun: as users call it.
        group: of the entry points.
        built_in: names that are always there; no entry point takes their place.
    """

    noun: str
    group: str
    built_in: tuple[str, ...]

    def check(self, name: str) -> str:
        """Return ``name`` if there is a part of this name.

        Raises:
            ValueError: there is none; the message lists those that are installed.
        """
        if name in self.built_in or name in _installed(self.group):
            return name
        raise ValueError(
            f"no {self.noun} is named {name!r}; known: {', '.join(self.names())}, "
            f"and whatever installed packages add as entry points of the group {self.group!r}"
        )

    def names(self) -> tuple[str, ...]:
        """Return all names: built in, then installed."""
        return (*self.built_in, *sorted(set(_installed(self.group)) - set(self.built_in)))

    def entry_point(self, name: str) -> EntryPoint:
        """Return the entry point of a name that is not built in.

        Raises:
            ConfigError: there is none, or several packages have one.
        """
        found = _installed(self.group).get(name, ())
        if not found:
            raise ConfigError(
                f"no {self.noun} is named {name!r} here: install the package with that entry point "
                f"of the group {self.group!r}"
            )
        if len(found) > 1:
            packages = ", ".join(sorted(package(point) for point in found))
            raise ConfigError(
                f"{self.noun} {name!r} is defined by several packages ({packages}): uninstall all but one"
            )
        return found[0]

    def load(self, name: str, base: type[Made]) -> Made:
        """Import an entry point as an instance of ``base``.

        It names an instance or a class. A class is instantiated without arguments.

        Raises:
            ConfigError: the package is missing, cannot be imported, or has something else there.
        """
        point = self.entry_point(name)
        with self.blamed(name):
            found: Any = point.load()
            if isinstance(found, type) and issubclass(found, base):
                found = found()
            if not isinstance(found, base):
                raise PluginError(f"is {found!r}, not a subclass or an instance of {base.__module__}.{base.__name__}")
            return found

    @contextmanager
    def blamed(self, name: str, *, passing: tuple[type[Exception], ...] = (ConfigError,)) -> Iterator[None]:
        """Report errors of a package's code with its entry point.

        Args:
            name: of the part.
            passing: errors that stay as they are.

        Raises:
            ConfigError: names part, entry point and package.
        """
        try:
            yield
        except passing:
            raise
        except (Exception, SystemExit) as error:
            point = self.entry_point(name)
            what = str(error) if isinstance(error, PluginError) else f"failed: {type(error).__name__}: {error}"
            raise ConfigError(
                f"{self.noun} {name!r}, entry point {point.value} of the package {package(point)}, {what}"
            ) from error


@cache
def _installed(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    from importlib.metadata import entry_points  # a slow import, which only names that are not built in need

    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=group):
        if point not in points.get(point.name, ()):  # a package found twice on the path is listed twice
            points[point.name] = (*points.get(point.name, ()), point)
    return points


def package(point: EntryPoint) -> str:
    """Return name and version of an entry point's package."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
