"""The locks of what is released."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TORCH = "docker/torch.lock"
RELEASED = {
    "python": ("requirements.lock", TORCH),
    "train": ("docker/train.lock", TORCH),
    "airflow": ("docker/airflow.lock",),
    "worker": ("docker/train.lock", "docker/airflow.lock", TORCH),
    "spark": ("docker/train.lock", "docker/spark.lock", "docker/pyspark.lock"),
    "store": ("docker/store.lock",),
}
"""By name: the environment that is tested, and each image."""
_PIN = re.compile(
    r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s\\;]+)[^\n]*((?:\\\n +--hash=sha256:[0-9a-f]{64} ?)+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Pin:
    """A package of a lock.

    Attributes:
        name: of the package.
        version: with the local part, such as ``+cpu``.
        hashes: SHA-256 of the files that may be installed, in hex.
    """

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The line by which pip installs it."""
        return " ".join((f"{self.name}=={self.version}", *(f"--hash=sha256:{each}" for each in self.hashes)))


def read(*paths: str | Path) -> dict[str, Pin]:
    """Return the pins of locks by the package's name.

    Raises:
        ValueError: a lock pins nothing, or two of them pin one package differently.
    """
    found: dict[str, Pin] = {}
    for path in paths:
        pins = _PIN.findall((REPOSITORY / path).read_text())
        if not pins:
            raise ValueError(f"{path}: no package is pinned by hash; write it anew with `make lock`")
        for name, version, hashes in pins:
            pin = Pin(name, version, tuple(re.findall(r"sha256:([0-9a-f]{64})", hashes)))
            if found.setdefault(name, pin).version != version:
                raise ValueError(f"{path}: {name} {version}, but another lock of the image has {found[name].version}")
    return found
