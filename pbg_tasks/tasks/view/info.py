"""``info``: what this installation can do on this machine."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import TypedDict

from pbg_tasks import __version__
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.loading import is_graph_spec, load_graph_spec
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.native import instruction_set
from pbg_tasks.native.coverage import LEFT_TO_TORCH
from pbg_tasks.prepare.spark import lacking
from pbg_tasks.tasks.directory.configs import load_config_from, read_config_document

_SHOWN = ("torch", "h5py", "duckdb", "pyarrow", "boto3", "apache-airflow", "pyspark")


class Installation(TypedDict):
    """Abilities of this installation."""

    version: str
    python: str
    machine: str
    cpus: int
    engines: list[str]
    native: str
    left_to_torch: list[str]
    packages: dict[str, str]
    preparation: dict[str, str]


class Engine(TypedDict):
    """The engine that trains a config, and the reason."""

    engine: str
    because: str


class EngineOf(Engine):
    """The engine of a config."""

    config: str


def info(config: str | None = None, overrides: list[str] | None = None) -> Installation | EngineOf:
    """Describe the installation, or which engine trains a config and why.

    Args:
        config: path or URL of a PBG config, or path of a graph spec.
        overrides: ``key.path=value`` changes of it.

    Raises:
        ConfigError: the config is wrong.
    """
    if config is not None:
        return {"config": config, **_engine_of(config, overrides or [])}
    native = instruction_set()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": usable_cpus(),
        "engines": ["torch", *(["native"] if native else [])] if _version("torch") else [],
        "native": native or "not built: the installation found no C++ compiler for it (GCC 12 or newer, or clang)",
        "left_to_torch": list(LEFT_TO_TORCH),
        "packages": {name: version for name in _SHOWN if (version := _version(name))},
        "preparation": {"duckdb": "ready", "spark": f"lacks {'; '.join(lacks)}" if (lacks := lacking()) else "ready"},
    }


def _engine_of(url: str, overrides: list[str]) -> Engine:
    from pbg_tasks.training.engine.choice import engine_name

    if is_graph_spec(parse_document(read_config_document(url), source=url)):
        graph = load_graph_spec(Path(url), overrides)
        if graph.train.engine != "auto":
            return {"engine": graph.train.engine, "because": "train.engine names it"}
        name, reason = engine_name("auto", graph.model, graph.train.device)
    else:
        name, reason = engine_name("auto", load_config_from(url, overrides))
    return {"engine": name, "because": reason or "it computes all of the config, and no GPU is asked for"}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
