"""Build the images with buildah, without daemon or registry.

The registry is used where one can be reached.

    python -m tests.docker.images train worker

The base is pulled, else made of Debian's packages with mmdebstrap. ``TORCH_WHEELS`` may name a folder with the CPU
build of torch that ``docker/torch.lock`` names; without it, torch comes by its name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TORCH = "2.13.0"
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE = "localhost/pbg-train"
CONFINED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
"""Options of podman for a container that is as confined as a pod."""
RUNTIME = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
"""Settings of podman for a machine with control groups of both versions, and without the right to raise limits."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
MOUNTED = "/run/certificates.crt"
"""Place of the certificates in a build: a mount at Debian's own folder would keep Java from writing there."""
PULL_SECONDS = 120
BUILT = "PBG_E2E_IMAGES"
"""Variable that lets tests build images and run them; ``built`` takes those that were built before."""
PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")


def missing_programs() -> list[str]:
    """Return the programs that have to be installed first."""
    return [program for program in ("buildah", "podman", "mmdebstrap") if shutil.which(program) is None]


def exists(image: str) -> bool:
    """Return whether an image exists."""
    return _status("podman", "image", "exists", image) == 0


def build_base() -> None:
    """Make an image of the base's name from Debian's packages.

    Debian's Python 3.11 is available where a registry is not.
    """
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root.tar"
        link = 'ln -s python3 "$1/usr/bin/python"'
        packages = f"--include={','.join(PACKAGES)}"
        _run("mmdebstrap", "--variant=minbase", packages, f"--customize-hook={link}", "bookworm", str(root))
        container = _run("buildah", "from", "scratch").strip()
        _run("buildah", "add", container, str(root), "/")
        _run("buildah", "commit", "--rm", container, BASE)


def name_of(target: str) -> str:
    """Return the name of a target's image."""
    return f"localhost/pbg-{target}"


def build(target: str) -> None:
    """Build an image by docker/README.md."""
    options = ["--isolation=chroot", "--network=host", "--pull-never", "--layers"]
    options += [
        f"--build-arg=PYTHON_IMAGE={BASE}",
        "--build-arg=UNPINNED=1",
    ]  # the base may have been made here and has no digest then
    if CERTIFICATES.exists():  # a network may have a certificate of its own
        options += [f"--volume={CERTIFICATES}:{MOUNTED}:ro", f"--build-arg=PIP_CERT={MOUNTED}"]
    if wheels := os.environ.get("TORCH_WHEELS"):
        options += [f"--volume={Path(wheels).resolve()}:/wheels:ro", "--build-arg=PIP_FIND_LINKS=/wheels"]
    else:
        options.append(f"--build-arg=TORCH=torch=={TORCH}")
    dockerfile = REPOSITORY / "docker" / "Dockerfile"
    _run(
        "buildah", "bud", *options, "-f", str(dockerfile), f"--target={target}", "-t", name_of(target), str(REPOSITORY)
    )


def make(*targets: str) -> None:
    """Build images, and their base where it is missing."""
    if not exists(BASE) and not _pull():
        build_base()
    for target in targets:
        build(target)


def podman_refuses(image: str, directory: Path, patch: pytest.MonkeyPatch) -> str:
    """Return why podman cannot run a container here; empty where it can.

    Where it cannot with its own settings, ``RUNTIME`` is tried, and stays in the environment if it helps.

    Args:
        image: of the container, with a program ``true``.
        directory: for the settings.
        patch: of the environment.
    """
    refusal = _refusal(image)
    if refusal and "CONTAINERS_CONF" not in os.environ:
        path = directory / "containers.conf"
        path.write_text(RUNTIME)
        patch.setenv("CONTAINERS_CONF", str(path))
        refusal = _refusal(image)
    return refusal


def _refusal(image: str) -> str:
    probe = ["podman", "run", "--rm", *CONFINED, "--network=none", "--entrypoint=true", image]
    tried = subprocess.run(probe, capture_output=True, text=True, timeout=120, check=False)
    return tried.stderr.strip()[-200:] if tried.returncode else ""


def _pull() -> bool:
    try:
        return _status("buildah", "pull", BASE, timeout=PULL_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False


def _status(*command: str, timeout: float | None = None) -> int:
    return subprocess.run(command, check=False, timeout=timeout).returncode


def _run(*command: str) -> str:
    """Run a command, which reports its work on stderr.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} ended with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout.splitlines()[-1] if done.stdout.strip() else ""


if __name__ == "__main__":
    if found := missing_programs():
        sys.exit(f"install {' and '.join(found)} first")
    make(*(sys.argv[1:] or ["train"]))
