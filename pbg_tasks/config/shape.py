"""Types of the places inside a config, from its schema.

A place is a type annotation, and ``Any`` where the schema has none.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

Place = Any


def bare(place: Place) -> Place:
    """Return an annotation without constraints and without ``None``."""
    kind: Any = get_origin(place)
    if kind is Annotated:
        return bare(get_args(place)[0])
    if kind in {Union, UnionType}:
        options = [option for option in get_args(place) if option is not NoneType]
        return bare(options[0]) if len(options) == 1 else Any
    return place


def container(place: Place) -> Any:  # noqa: ANN401 - dict, tuple, Literal or None
    """Return the container type of an annotation, such as dict.

    None where it is a plain type.
    """
    return get_origin(bare(place))


def model_at(place: Place) -> type[BaseModel] | None:
    """Return the model whose fields are the keys at a place.

    None where keys are free or there are none.
    """
    inner = bare(place)
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def within(place: Place, key: str | int) -> Place:
    """Return the place of a key, name or index, one step below."""
    model = model_at(place)
    if model is not None:
        field = model.model_fields.get(str(key))
        return field.annotation if field is not None else Any
    inner = get_args(bare(place))
    if container(place) is dict:
        return inner[1]
    return inner[0] if container(place) is tuple else Any


def holds_text(place: Place) -> bool:
    """Return whether the place is of a string."""
    return bare(place) is str or container(place) is Literal


def holds_texts(place: Place) -> bool:
    """Return whether the place is of a list of strings."""
    return container(place) is tuple and holds_text(within(place, 0))
