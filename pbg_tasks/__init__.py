"""Train and publish embeddings of large multi-relation graphs, in PyTorch-BigGraph's formats.

``train`` and ``Model`` are those of ``pbg_tasks.api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from pbg_tasks.api import Model, train
    from pbg_tasks.config.contract import Contract

__all__ = ["Contract", "Model", "train"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any name may be asked for
    """Import the Python interface when it is first used.

    It takes a second, which a scheduler does not wait for. The version is that of the installed distribution, or
    ``unknown`` for sources that are only on the path.
    """
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("pbg-tasks")
        except PackageNotFoundError:
            return "unknown"
    if name in {"Model", "train"}:
        from pbg_tasks import api

        return getattr(api, name)
    if name == "Contract":
        from pbg_tasks.config.contract import Contract

        return Contract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List also what is not imported yet, which shells complete."""
    return sorted({*globals(), *__all__})
