"""The names a config may use for operators, comparators, losses and regularizers.

Some are built in; others are entry points of installed packages, one group a kind (see docs/extending.md). Only names
are looked at here: nothing is imported, torch least of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of thing a config names.

    Attributes:
        noun: what a user calls it.
        group: of the entry points.
        built_in: names that are always there; no entry point takes their place.
    """

    noun: str
    group: str
    built_in: tuple[str, ...]

    def check(self, name: str) -> str:
        """Return ``name`` if there is one.

        Raises:
            ValueError: there is none.
        """
        if name in self.built_in or name in _installed(self.group):
            return name
        known = ", ".join((*self.built_in, *sorted(_installed(self.group))))
        raise ValueError(
            f"no {self.noun} is named {name!r}; known: {known}, "
            f"and whatever installed packages add as entry points of the group {self.group!r}"
        )

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


@cache
def _installed(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=group):
        if point not in points.get(point.name, ()):  # a package found twice on the path is listed twice
            points[point.name] = (*points.get(point.name, ()), point)
    return points


def package(point: EntryPoint) -> str:
    """Return the name and version of the package an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"


OPERATORS = Kind(
    "operator",
    "pbg_tasks.operators",
    ("none", "translation", "diagonal", "complex_diagonal", "linear", "affine"),
)
COMPARATORS = Kind("comparator", "pbg_tasks.comparators", ("dot", "cos", "l2", "squared_l2"))
LOSSES = Kind("loss", "pbg_tasks.losses", ("ranking", "logistic", "softmax"))
REGULARIZERS = Kind("regularizer", "pbg_tasks.regularizers", ("N3", "N3_edge", "L2"))
