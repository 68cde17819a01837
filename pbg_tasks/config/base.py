"""Base of all config models: frozen, strict about unknown keys.

Errors are clear about the document, the key and the fault.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from pbg_tasks.config.names import NAME_PATTERN, NAME_RULE
from pbg_tasks.config.shape import model_at, within
from pbg_tasks.errors import ConfigError
from pbg_tasks.redaction import credentials_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)
_MAX_INT = 2**64
_SURROGATES = re.compile("[\ud800-\udfff]")
_EXPLAINED = 20
"""Largest number of problems of one document that an error names."""
_DEPTH_OF_SECTIONS = 2
_OF_TRAINING = ("device", "engine", "seed")
"""Keys of a spec's ``train`` that are options of ``pbg train`` for a config, so easily taken for keys of the model."""


class Frozen(BaseModel):
    """Base of every spec: immutable after validation.

    It accepts no key that the model lacks.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_enum_values=True,
        validate_default=True,
        hide_input_in_errors=True,
        defer_build=True,  # a task uses few of some hundred models, and building all takes longer than most tasks
    )


class Options(Frozen):
    """Base of the options of a package's source or format."""


class Growing(Frozen):
    """Base of stored specs that have gained keys.

    A key of ``later_keys`` is left out of a dump while it has its default, so that earlier versions can read the dump
    and the ids of runs, which are hashes of it, stay the same.
    """

    later_keys: ClassVar[tuple[str, ...]] = ()

    def always_stored(self) -> tuple[str, ...]:
        """Return the ``later_keys`` that a dump has with any value.

        They are those whose default was another one once.
        """
        return ()

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        later = (key for key in self.later_keys if key not in self.always_stored())
        unset = {key for key in later if getattr(self, key) == fields[key].default}
        return {key: value for key, value in serialize(self).items() if key not in unset}


def canonical_json(value: Any, *, allow_nan: bool = True) -> bytes:  # noqa: ANN401 - any JSON value
    """Serialise a JSON value so that equal values give equal bytes.

    Keys are sorted, there are no spaces, and the text is UTF-8.

    Args:
        value: the JSON value.
        allow_nan: whether to write NaN and infinity, which are no JSON, as Python does.

    Raises:
        ValueError: there is such a number and it is not allowed, or a text that is no UTF-8.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=allow_nan).encode()


def digest(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the hash of a JSON value, in hex.

    It is the sha256 of its canonical form.
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()


def parse(
    model: type[Model],
    data: Mapping[str, Any],
    *,
    source: str,
    ignore_unknown: bool = False,
    credentials_pass: bool = False,
) -> Model:
    """Validate ``data`` against a model.

    Every problem goes into one ConfigError that names ``source`` and the key.

    Args:
        model: of the document.
        data: its keys.
        source: file or URL, for the message.
        ignore_unknown: whether to leave out keys that the model lacks, at every level; for documents of tasks, never
            for those that users write.
        credentials_pass: whether texts may hold credentials; for documents that quote names of a graph, in which an
            entity may be a URL with a key in its query.

    Raises:
        ConfigError: a key is unknown (the nearest known one is named), missing, of the wrong type or contradictory; or
            a URL holds credentials, a text has characters that no file can have, or a number has more than 64 bits.
    """
    try:
        scalars = list(_scalars(data))
        asked = () if credentials_pass else scalars
        if secret := [
            f"{key} holds {kind}" for key, value in asked if isinstance(value, str) and (kind := credentials_in(value))
        ]:
            raise ConfigError(
                f"{source}: {'; '.join(secret)}: write the place alone; credentials come from the environment, a "
                "profile or the Airflow connection"
            )
        found = model.model_validate(data, extra="ignore" if ignore_unknown else None)
        if unfit := [f"{key} {fault}" for key, value in scalars if (fault := _unfit(value))]:
            raise ConfigError(f"{source}: {'; '.join(unfit)}")
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(model, error)}") from None
    return found


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return a question that names the nearest known name.

    It is empty where none is near, which is a similarity of ``cutoff`` by difflib.
    """
    near = _nearest(name, known, cutoff)
    return "" if near is None else f"did you mean {near!r}?"


def _nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Return the problems of a document on one line, with keys.

    Of very many problems, only the first ones are named. A misspelt key is not called missing as well.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    # pydantic also reports a list as too short when it refused the list's entries.
    parents = {problem["loc"][:end] for problem in found for end in range(len(problem["loc"]))}
    problems = [each for each in found if each["type"] != "too_short" or each["loc"] not in parents]
    left_out = [f"and {len(problems) - _EXPLAINED} more"] if len(problems) > _EXPLAINED else []
    named = problems[:_EXPLAINED]
    meant = {_meant(model, problem) for problem in named}
    shown = [each for each in named if each["type"] != "missing" or each["loc"] not in meant]
    return "; ".join([*(_explain(model, problem) for problem in shown), *left_out])


def _meant(model: type[BaseModel], problem: ErrorDetails) -> tuple[int | str | None, ...]:
    """Return the place of the known key nearest to an unknown one."""
    if problem["type"] != "extra_forbidden":
        return ()
    *parents, name = problem["loc"]
    return (*parents, _nearest(str(name), _known_keys(model, _shown(parents))))


def _unfit(value: str | int) -> str | None:
    """Return the fault of a value, if it has one.

    It is one that no key may have.
    """
    if isinstance(value, str):
        if "\0" in value:
            return "holds a NUL character, which no path or name can have"
        return "holds half of a surrogate pair, which no file can have" if _SURROGATES.search(value) else None
    return "is a number of more than 64 bits" if abs(value) > _MAX_INT else None


def _scalars(value: object, key: str = "") -> Iterator[tuple[str, str | int]]:
    """Yield the texts and integers of a document, each with its key."""
    if isinstance(value, str | int):
        yield key, value
    elif isinstance(value, list | tuple | Mapping):
        parts = enumerate(value) if isinstance(value, list | tuple) else value.items()
        for name, part in parts:
            if not isinstance(part, float):  # floats are most of a result's values, and neither text nor integer
                yield from _scalars(part, f"{key}.{_part(name)}" if key else _part(name))


def _part(name: object) -> str:
    """Return a part of a key path, quoted if its dots mislead."""
    text = str(name)
    return text if all(text.split(".")) else repr(text)


def _explain(model: type[BaseModel], problem: ErrorDetails) -> str:
    path = _shown(problem["loc"])
    where = ".".join(map(_part, path)) or "the whole"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(model, path[:-1])
        name = str(path[-1])
        elsewhere = f"it is --{name} of pbg train, and train.{name} of a graph spec" if name in _OF_TRAINING else ""
        elsewhere += "; num_gpus: 1 means cuda" if name == "device" and "num_gpus" in known else ""
        if not elsewhere and len(path) <= _DEPTH_OF_SECTIONS and (place := _place_of(model, name)):
            elsewhere = f"did you mean {place!r}{'' if '.' in place else ', beside the other sections'}?"
        hint = elsewhere or did_you_mean(name, known) or f"known keys: {', '.join(known)}"
        return f"unknown key {where!r}; {hint}"
    if problem["type"] == "missing":
        return f"key {where!r} is missing"
    if problem["type"] == "model_type" and (known := _known_keys(model, path)):
        return f"{where}: takes keys, not a value alone; known keys: {', '.join(known)}"
    if problem["type"] == "string_pattern_mismatch" and NAME_PATTERN in problem["msg"]:
        return f"{where}: {NAME_RULE}"
    if problem["type"] == "string_type":
        return f"{where}: {problem['msg']}; write words such as on, and numbers, in quotes"
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}"


def _place_of(model: type[BaseModel], name: str) -> str | None:
    """Return the shortest path of a key of this name.

    None where there is no such key. The name may have been written in a wrong section, or in none.
    """
    found = [name] if name in model.model_fields else []
    for section, field in model.model_fields.items():
        inner = model_at(field.annotation)
        below = None if inner is None else _place_of(inner, name)
        found += [f"{section}.{below}"] if below else []
    return min(found, key=lambda path: path.count("."), default=None)


def _shown(place: Iterable[int | str]) -> list[int | str]:
    return [part for part in place if not str(part).startswith(("function-", "tagged-"))]


def _known_keys(model: type[BaseModel], path: list[int | str]) -> list[str]:
    """List the known keys at a path of a document.

    There are none where keys are free.
    """
    found = model_at(functools.reduce(within, path, model))
    return sorted(found.model_fields) if found is not None else []
