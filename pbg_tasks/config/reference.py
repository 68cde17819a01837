"""Keys of a graph spec: type, default and meaning.

They are read from the models. ``pbg keys`` prints them, and the site has a table for each section.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from pydantic import BaseModel

from pbg_tasks.config import sinks, sources
from pbg_tasks.config.graph import NIGHTLY, GraphSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ATTRIBUTE = re.compile(r"^    (\*{0,2}\w+(?:, \w+)*):\s", re.MULTILINE)


class Key(NamedTuple):
    """Key of a graph spec.

    Attributes:
        path: such as ``gates.min_mrr``; ``NAME`` stands for a name of yours, ``[]`` for each item of a list.
        type: in words.
        default: as YAML has it, or ``required``.
        meaning: a sentence.
    """

    path: str
    type: str
    default: str
    meaning: str


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a graph spec."""
    schema = GraphSpec.model_json_schema()
    for name, default in NIGHTLY.items():  # elsewhere these keys have PBG's
        schema["$defs"]["ModelConfig"]["properties"][name]["default"] = default
    return schema


def keys() -> Iterator[Key]:
    """Yield all keys of a graph spec, section by section."""
    schema = spec_schema()
    models = {model.__name__: model for model in within(GraphSpec)}
    yield from _below("", schema, GraphSpec, schema["$defs"], models)
    for path, options in (("snapshots.options.", sources.OPTIONS), ("exports[].options.", sinks.OPTIONS)):
        for name, model in options.items():
            section = model.model_json_schema()
            for key in _below(path, section, model, section.get("$defs", {}), {}):
                yield key._replace(meaning=f"of format {name}: {key.meaning}")


def matching(prefix: str) -> list[Key]:
    """Return the keys of a section, or those with a name.

    Args:
        prefix: a path or its beginning, with or without ``NAME`` and ``[]``, or the last part of one; empty: all.
    """
    found, asked = [*keys()], _bare(prefix.rstrip("."))
    below = [key for key in found if not asked or f"{_bare(key.path)}.".startswith(f"{asked}.")]
    return below or [key for key in found if key.path.rpartition(".")[2] == asked]


def _bare(path: str) -> str:
    return re.sub(r"\[\]|\.NAME\b", "", path)


def _below(
    path: str,
    section: Mapping[str, Any],
    model: type[BaseModel],
    sections: Mapping[str, Any],
    models: Mapping[str, type[BaseModel]],
    above: Mapping[str, Any] | None = None,
) -> Iterator[Key]:
    """Yield the keys of a section and those below them.

    ``above`` is the default of this section where it has one: it goes before the defaults of its keys.
    """
    meanings = documented_keys(model)
    for name, found in section["properties"].items():
        below = list(_sections(found, f"{path}{name}", sections))
        meaning = meanings.get(name) or (rest(sections[below[0][1]]).partition(". ")[0] if below else "")
        type_ = kind(found, lambda named: "section" if named in models else "any")
        default = str(short(above[name])) if above and name in above else default_of(name, section, model)
        yield Key(f"{path}{name}", _plain(type_), default, _plain(meaning))
        for deeper, named in below:
            own = found.get("default") if deeper == f"{path}{name}" and isinstance(found.get("default"), dict) else None
            yield from _below(f"{deeper}.", sections[named], models[named], sections, models, own)


def _plain(text: str) -> str:
    """Return Markdown of a cell as plain text."""
    return text.replace("`", "").replace("\\|", "|")


def _sections(found: Mapping[str, Any], path: str, sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sections below a key, with the path of each."""
    if "$ref" in found:
        if sections.get(_name(found), {}).get("properties"):
            yield path, _name(found)
        return
    for each in _choices(found):
        yield from _sections(each, path, sections)
    if isinstance(items := found.get("items"), dict):
        yield from _sections(items, f"{path}[]", sections)
    if isinstance(by_name := found.get("additionalProperties"), dict):
        yield from _sections(by_name, f"{path}.NAME", sections)


def default_of(key: str, section: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return the default of a key as YAML has it, or ``required``."""
    if key in section.get("required", ()):
        return "required"
    made = model.model_fields[key].get_default(call_default_factory=True)  # a factory's is not in the schema
    return str(short(section["properties"][key].get("default", made)))


def within(kind: object) -> Iterator[type[BaseModel]]:
    """Yield a model and those of its keys, from a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from within(field.annotation)
    for part in get_args(kind):
        yield from within(part)


def documented_keys(model: type) -> dict[str, str]:
    """Return the meaning of each key, inherited ones too.

    That of a key which one format alone has begins with the format's name.
    """
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        text, _, keys = inspect.cleandoc(each.__doc__ or "").partition("Attributes:")
        of = re.match(r"Options of `(`[\w-]+`)`\.", text) if each is not model else None
        found |= {key: f"{of[1]}: {meaning}" if of else meaning for key, meaning in attributes(keys).items()}
    return found


def rest(section: Mapping[str, Any]) -> str:
    """Return a section's docstring without its attributes."""
    return markdown_of(section.get("description", "").partition("Attributes:")[0])


def attributes(text: str) -> dict[str, str]:
    """Return the meaning of each attribute of a docstring's section."""
    found = _ATTRIBUTE.split(text)[1:]
    pairs = zip(found[::2], found[1::2], strict=True)
    return {name: markdown_of(meaning) for names, meaning in pairs for name in names.split(", ")}


def markdown_of(text: str) -> str:
    """Return a docstring's text as Markdown that fits into a cell."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def short(value: object) -> object:
    """Return a default as YAML has it."""
    if value is None or value == "" or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict) and value.keys() <= {"warn", "block"}:
        return f"{{{', '.join(f'{name}: {limit:g}' for name, limit in value.items() if limit is not None)}}}"
    return "{...}" if isinstance(value, dict) and value else value


def numbers(found: Mapping[str, Any]) -> str:
    """Return the limits of a number; empty: none."""
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{word} {found[name]:g}" for name, word in words.items() if name in found]
    return f" ({', '.join(limits)})" if limits else ""


def kind(found: Mapping[str, Any], named: Callable[[str], str]) -> str:
    """Return the type of a key in words.

    Args:
        found: of the JSON Schema.
        named: returns the words for a section.
    """
    if "$ref" in found:
        return named(_name(found))
    if choices := _choices(found):
        return " or ".join(kind(each, named) for each in choices)
    if values := found.get("enum") or [found[key] for key in ("const",) if key in found]:
        return ", ".join(f"`{value}`" for value in values)
    if found.get("type") == "array":
        return f"list of {kind(found.get('items', {}), named)}"
    by_name = found.get("additionalProperties")
    return (
        f"by name: {kind(by_name, named)}" if isinstance(by_name, dict) else found.get("type", "any") + numbers(found)
    )


def _choices(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the types of which a key takes any."""
    choices: Sequence[Mapping[str, Any]] = found.get("anyOf") or found.get("oneOf") or ()
    return choices


def _name(found: Mapping[str, Any]) -> str:
    return str(found["$ref"]).rpartition("/")[2]
