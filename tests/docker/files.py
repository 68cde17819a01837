"""Facts read from the Dockerfile and the locks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKER = REPOSITORY / "docker"
IMAGES = ("train", "airflow", "worker", "spark", "store")


def pins(path: Path) -> dict[str, str]:
    """Return the versions of a lock by package."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(\S+)", path.read_text(), re.MULTILINE))


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage, after those of its base stages."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text()).splitlines():
        if (begun := re.match(r"FROM (\S+) AS (\S+)", line)) is not None:
            current = found[begun[2]] = list(found.get(begun[1], []))
        elif found and line and not line.startswith("#"):
            current.append(line)
    return found


def installed(image: str) -> set[str]:
    """Return the packages of an image.

    They are of the locks of the stage that its environment is copied from.
    """
    (built,) = re.findall(r"COPY --from=(\S+) /opt/pbg ", "\n".join(stages()[image]))
    text = "\n".join(stages()[built])
    return {name for lock in re.findall(r"--requirement (docker/\S+)", text) for name in pins(REPOSITORY / lock)}


def compose_services(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the services of ``compose.yaml``, with variables replaced as Compose does.

    Args:
        variables: those that are set; the file has defaults for the others.
    """

    def value(found: re.Match[str]) -> str:
        name, operator, default = found.groups()
        assert operator == "-" or name in variables, f"{name} would have to be set"
        return variables.get(name, default)

    text = re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, (DOCKER / "compose.yaml").read_text())
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    return services
