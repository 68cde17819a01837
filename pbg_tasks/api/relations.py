"""Relations by name: their ids, and the entity types that they join."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.api.names import UnknownNameError
from pbg_tasks.errors import InputError
from pbg_tasks.model.families import Families

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.parameters import Side


_FEW = 8  # relations that an error lists


class RelationIndex:
    """Index of the relations of a model.

    Attributes:
        names: of the relations, by id.
        families: of the relations, with the places of their parameters.
    """

    def __init__(self, config: ModelConfig, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.families = Families(config, len(names))
        self._config = config
        self._ids: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            self._ids.setdefault(name, []).append(number)

    def __len__(self) -> int:
        return len(self.names)

    def entity_type(self, rel: int, side: Side) -> str:
        """Return the entity type on one side of a relation."""
        entity: str = getattr(self._config.relations[self.families.first[rel]], side)
        return entity

    def only(self) -> str:
        """Return the name of the only relation.

        Raises:
            InputError: there are several.
        """
        if len(self.names) != 1:
            raise InputError(f"name a relation: the model has {len(self.names)}")
        return self.names[0]

    def _listed(self) -> str:
        """Return the names of few relations, the number of many."""
        names = sorted(self._ids)
        return f"the relations are {', '.join(names)}" if len(names) <= _FEW else f"there are {len(names)} relations"

    def numbers(self, names: Sequence[str], *, lhs_type: str | None = None, rhs_type: str | None = None) -> np.ndarray:
        """Return the id of each name: int64 (N,).

        Args:
            names: of relations.
            lhs_type: entity type on the left, where several relations have the name.
            rhs_type: same on the right.

        Raises:
            UnknownNameError: there is no such relation; the message has the nearest names.
            InputError: several relations have the name.
        """
        known = {name: self.number(name, lhs_type, rhs_type) for name in set(names)}
        return np.array([known[name] for name in names], np.int64)

    def number(self, name: str, lhs_type: str | None, rhs_type: str | None) -> int:
        """Return the id of one name, as ``numbers`` does."""
        named = self._ids.get(name, [])
        fitting = [
            number
            for number in named
            if lhs_type in {None, self.entity_type(number, "lhs")}
            and rhs_type in {None, self.entity_type(number, "rhs")}
        ]
        if len(fitting) == 1:
            return fitting[0]
        if not named:
            near = difflib.get_close_matches(name, list(self._ids), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else self._listed()
            raise UnknownNameError(f"no relation is named {name!r}; {hint}")
        listed = ", ".join(f"{self.entity_type(n, 'lhs')} -> {self.entity_type(n, 'rhs')}" for n in named)
        raise InputError(f"relation {name!r} goes {listed}: say which by lhs_type and rhs_type")
