"""Parsing of config documents: JSON, YAML, or PBG's own Python configs.

The suffix decides. No code of a document is ever executed.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import PurePosixPath
from typing import Any, NoReturn

from pbg_tasks.config.literal import read_literal_config
from pbg_tasks.errors import ConfigError

SUFFIXES = (".py", ".json", ".yaml", ".yml")
_MAX_BYTES = 8 << 20
_UNQUOTED = re.compile(r"^[^#'\"\n]*:[ \t]+\{\w+\}[^,}\s]", re.MULTILINE)  # ``location: {snapshot}/edges.csv``
_PLACEHOLDER = re.compile(r"\{\w+\}")  # where YAML stops in ``{location: edges/{snapshot}.csv}``


def parse_document(data: bytes, *, source: str) -> dict[str, Any]:
    """Parse a config or spec.

    Args:
        data: its bytes, UTF-8.
        source: its path or URL; the suffix decides how it is parsed.

    Raises:
        ConfigError: the suffix is unknown; or the document is not well formed, too large, has a key twice, is not a
            mapping at the top, or is a Python file that computes its config.
    """
    suffix = PurePosixPath(source).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{source}: a config is a file named *{', *'.join(SUFFIXES)}")
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{source}: {len(data)} bytes are no config; at most {_MAX_BYTES} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text: {error}") from None
    read = {".py": read_literal_config, ".json": parse_json}.get(suffix, parse_yaml)
    try:
        document = read(text, source=source)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply for a config") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping of keys at the top, found {type(document).__name__}")
    return document


def parse_yaml(text: str, *, source: str) -> Any:  # noqa: ANN401 - any YAML value
    """Parse one YAML value, of plain types only.

    Raises:
        ConfigError: it is not YAML, has a key twice, contains an object, or has too many values.
    """
    import yaml

    from pbg_tasks.config.yaml_loader import Loader

    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    # PyYAML passes on the errors of a scalar that does not fit its tag (`!!int x`) as they are.
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source}: not valid YAML: {_described(error)}{_hint(text, error)}") from None


def _described(error: Exception) -> str:
    """Return an error of YAML with its line, which is not quoted.

    PyYAML would quote it, cut, and then a password in it may go unnoticed.
    """
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return str(error)
    context = getattr(error, "context", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{f' {context}' if context else ''}"


def _hint(text: str, error: Exception) -> str:
    """Return advice for a value with braces, as in ``{snapshot}``."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None and _PLACEHOLDER.match(text, mark.index):
        return "; quote a value that has braces in it"
    return "; quote a value that begins with a brace" if _UNQUOTED.search(text) else ""


def parse_json(text: str, *, source: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse one JSON value.

    Raises:
        ConfigError: it is not JSON, has a key twice, or NaN, infinity or a number too large for a float.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite)
    except ValueError as error:
        raise ConfigError(f"{source}: not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} appears twice")
        found[key] = value
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large for a number")
    return number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
