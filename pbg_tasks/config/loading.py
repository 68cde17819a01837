"""Reading configs and specs: parsed, never executed; keys changed by path; validated as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.base import Model, parse
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.config.legacy import modernize
from pbg_tasks.config.overrides import override
from pbg_tasks.config.schema import ConfigSchema
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pbg_tasks.config.schema import ModelConfig


def load_graph_spec(path: Path, assignments: Sequence[str] | None = None) -> GraphSpec:
    """Read and validate a graph spec.

    Raises:
        ConfigError: naming the file and every key that is wrong.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    spec = _load(GraphSpec, data, str(path), assignments or ())
    _warn(spec.model, str(path))
    return spec


def load_config(data: bytes, *, source: str, overrides: Sequence[str] = ()) -> ConfigSchema:
    """Read and validate a PBG config; paths in it stay as written, relative ones to the working directory.

    Args:
        data: the document's bytes.
        source: its path or URL: the suffix tells JSON, YAML and Python apart, and errors name it.
        overrides: ``key.path=value``, see ``pbg_tasks.config.overrides``.

    Raises:
        ConfigError: naming the file and every key that is wrong.
    """
    config = _load(ConfigSchema, data, source, overrides)
    _warn(config, source)
    return config


def _load(schema: type[Model], data: bytes, source: str, overrides: Sequence[str]) -> Model:
    document = modernize(parse_document(data, source=source), schema, source=source)
    return parse(schema, override(document, overrides, source=source, schema=schema), source=source)


def _warn(config: ModelConfig, source: str) -> None:
    for warning in _warnings(config):
        say(f"warning: {source}: {warning}")


def _warnings(config: ModelConfig) -> Iterator[str]:
    if config.background_io:
        yield "background_io has no effect, as in PBG, which removed it"
    if config.verbose > 1:
        yield f"verbose: {config.verbose} has no effect: progress is always shown"
    if config.loss_fn == "logistic" and config.comparator == "cos":
        yield "loss_fn logistic on comparator cos sees scores between -1 and 1 only; dot is usual"
