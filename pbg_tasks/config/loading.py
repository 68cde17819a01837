"""Reading specs from files: YAML parsed safely, overrides by key path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from pbg_tasks.config.base import parse
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class _UniqueKeys(yaml.SafeLoader):
    """YAML takes the last of two equal keys silently; here that is an error with its line."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, has a key twice or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        data = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of keys at the top, found {type(data).__name__}")
    return data


def override(data: dict[str, Any], assignments: list[str], *, source: str) -> dict[str, Any]:
    """Apply ``key.path=value`` assignments; values are YAML scalars or lists, ``null`` included.

    Raises:
        ConfigError: an assignment has no ``=``, or its path leads through something that is not a mapping or list.
    """
    result: dict[str, Any] = yaml.safe_load(yaml.safe_dump(data))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"{source}: {assignment!r} is not of the form key.path=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        *parents, last = path.split(".")
        target: Any = result
        for part in parents:
            target = target.setdefault(part, {}) if isinstance(target, dict) else _element(target, part, assignment)
        if isinstance(target, dict):
            target[last] = value
        else:
            target[_index(target, last, assignment)] = value
    return result


def _element(target: Any, part: str, assignment: str) -> Any:  # noqa: ANN401 - any YAML value
    return target[_index(target, part, assignment)]


def _index(target: Any, part: str, assignment: str) -> int:  # noqa: ANN401 - any YAML value
    if isinstance(target, list) and part.isdigit() and int(part) < len(target):
        return int(part)
    raise ConfigError(f"override {assignment!r}: {part!r} leads nowhere")


def load_graph_spec(path: Path, assignments: list[str] | None = None) -> GraphSpec:
    """Read and validate a graph spec.

    Raises:
        ConfigError: naming the file and every key that is wrong.
    """
    data = override(read_yaml(path), assignments or [], source=str(path))
    return parse(GraphSpec, data, source=str(path))
