"""Compatibility contract: facts by which readers check that vectors fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.config.schema import ModelConfig


class Contract(Frozen):
    """Facts of a model on which readers of its vectors rely.

    A release has one in its manifest. A reader gives those that it relies on; what it leaves out is not compared.

    Attributes:
        space: id of the space that the vectors are in. Releases with one id can be compared entity by entity: each was
            trained from the vectors of the one before. A training from random vectors begins a space, which has the
            run's id. None: unknown.
        dimensions: of the vectors, by entity type. A reader may leave types out.
        comparator: name of the function that compares two vectors.
        operators: names of the relations' operators, sorted.
    """

    space: str | None = None
    dimensions: dict[str, int] | None = None
    comparator: str | None = None
    operators: tuple[str, ...] | None = None

    @classmethod
    def of(cls, model: ModelConfig, space: str | None) -> Contract:
        """Return the contract of a model with vectors in a space."""
        return cls(
            space=space,
            dimensions={name: model.entity_dimension(name) for name in model.entities},
            comparator=model.comparator,
            operators=tuple(sorted({relation.operator for relation in model.relations})),
        )

    def check(self, found: Contract, *, source: str) -> None:
        """Compare what a reader relies on with a model's contract.

        Raises:
            IncompatibleError: they differ; the message names ``source`` and every difference.
        """
        if differences := list(self._differences(found)):
            raise IncompatibleError(
                f"{source}: is not what its reader expects: {'; '.join(differences)}; stay with the release that fits, "
                "or renew what was made of its vectors and change the expectation"
            )

    def _differences(self, found: Contract) -> Iterator[str]:
        for name in ("space", "comparator", "operators"):
            expected, there = getattr(self, name), getattr(found, name)
            if expected is not None and expected != there:
                yield f"{name} is {_text(there)}, not {_text(expected)}"
        there = found.dimensions or {}
        for entity, dimension in (self.dimensions or {}).items():
            if entity not in there:
                yield f"entity type {entity!r} is missing"
            elif there[entity] != dimension:
                yield f"dimension of {entity!r} is {there[entity]}, not {dimension}"


def _text(value: object) -> str:
    return "unknown" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)
