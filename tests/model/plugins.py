"""Packages with entry points that need no installation.

Each is a module and its metadata in a folder.
"""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

from pbg_tasks import plugins
from pbg_tasks.model import registry


def write_package(folder, name, source, groups):
    """Write a package; ``groups`` maps groups to names and their targets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = (
        "\n".join((f"[{group}]", *(f"{point} = {target}" for point, target in points.items())))
        for group, points in groups.items()
    )
    (metadata / "entry_points.txt").write_text("\n\n".join(sections) + "\n")


def forget():
    """Forget the packages that were found, as a new process would."""
    for cached in (
        plugins._installed,
        registry._installed_operator,
        registry._installed_comparator,
        registry._installed_loss,
        registry._installed_regularizer,
        registry._probe_operator,
        registry.parameter_names,
    ):
        cached.cache_clear()


@contextmanager
def package_folder(folder):
    """Put a folder on the path; yield ``write_package`` for this folder."""
    written = []

    def write(name, source, groups):
        write_package(folder, name, source, groups)
        written.append(name)
        importlib.invalidate_caches()
        forget()

    sys.path.insert(0, str(folder))
    yield write
    sys.path.remove(str(folder))
    for name in written:
        sys.modules.pop(name, None)
    forget()


def documented(page="extending.md", code="(.*?)"):
    """Return the arguments of ``write_package`` for the example of a page."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    (source,) = re.findall(rf"```python\n{code}```", text, re.DOTALL)
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    project = tomllib.loads(toml)["project"]
    return project["name"], source, project["entry-points"]


def documented_parts():
    """Return the modules of the page on plug-ins, by file name."""
    text = (Path(__file__).parents[2] / "docs/plugins.md").read_text()
    return dict(re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL | re.MULTILINE))
