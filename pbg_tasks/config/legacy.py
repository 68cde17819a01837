"""Old spelling of PBG's keys: mixedCase, as in early versions.

``numPartitions`` is ``num_partitions`` now.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pbg_tasks.config.schema import EntitySchema, ModelConfig, RelationSchema
from pbg_tasks.config.shape import Place, container, model_at, within
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

_PBG = (ModelConfig, EntitySchema, RelationSchema)  # only keys of PBG's own models ever had the old spelling


def spelling(model: type[BaseModel], key: str) -> str:
    """Return today's spelling of a key of ``model``.

    A key that the model lacks in either spelling stays as it is.
    """
    today = re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", key)
    return today if issubclass(model, _PBG) and key not in model.model_fields and today in model.model_fields else key


def modernize(data: Any, place: Place, *, source: str) -> Any:  # noqa: ANN401 - any value of a document
    """Return ``data`` with today's spelling of its keys.

    Names, such as those of entity types, are left alone.

    Args:
        data: value at ``place``.
        place: annotation of the value, which shows the keys that are PBG's.
        source: name of the document in errors.

    Raises:
        ConfigError: a key is there in both spellings.
    """
    model = model_at(place)
    if model is not None and isinstance(data, dict):
        return _modern_keys(data, model, source)
    if container(place) is dict and isinstance(data, dict):
        return {name: modernize(value, within(place, name), source=source) for name, value in data.items()}
    if container(place) is tuple and isinstance(data, list):
        return [modernize(value, within(place, 0), source=source) for value in data]
    return data


def _modern_keys(data: dict[Any, Any], model: type[BaseModel], source: str) -> dict[Any, Any]:
    spelled: dict[Any, Any] = {}
    for key in data:
        today = spelling(model, key) if isinstance(key, str) else key
        if today in spelled:
            both = " and ".join(repr(each) for each in (spelled[today], key))
            raise ConfigError(f"{source}: {both} are two spellings of one key; keep {today!r} only")
        spelled[today] = key
    return {today: modernize(data[key], within(model, today), source=source) for today, key in spelled.items()}
