"""Names of a model's shared parameters: operators and global embeddings.

The name of a parameter is PBG's path below ``model/`` in its model file. Nothing here takes torch.
"""

from __future__ import annotations

from typing import Literal

Side = Literal["lhs", "rhs"]
SIDES: tuple[Side, Side] = ("lhs", "rhs")
OTHER_SIDE: dict[Side, Side] = {"lhs": "rhs", "rhs": "lhs"}


def operator_path(index: int, side: Side, name: str) -> str:
    """Return the path of an operator's parameter."""
    return f"relations/{index}/operator/{side}/{name}"


def global_path(entity: str) -> str:
    """Return the path of an entity type's global embedding."""
    return f"entities/{entity}/global_embedding"
