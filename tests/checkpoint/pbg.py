"""PBG's changes to a checkpoint directory, file by file.

They can be stopped after each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def names(version: int) -> list[str]:
    """Return the files of a version: two partitions and the model."""
    return [f"embeddings_all_0.v{version}.h5", f"embeddings_all_1.v{version}.h5", f"model.v{version}.h5"]


def version_of(directory: Path) -> int:
    """Read ``checkpoint_version.txt`` as PBG does: missing or empty is 0."""
    path = directory / "checkpoint_version.txt"
    text = path.read_text() if path.exists() else ""
    return int(text) if text.strip() else 0


def iterate(directory: Path, content: str) -> Iterator[str]:
    """Train one iteration, yielding before each step.

    Leaving the generator at a yield is a crash.
    """
    directory.mkdir(exist_ok=True)
    done = version_of(directory)
    for name in names(done + 1):
        yield f"write {name}"
        (directory / name).write_text(f"{name} {content}")
    mirror = directory / "checkpoint_version.txt"
    yield "empty the version file"
    with mirror.open("w") as file:
        yield "write the version file"
        file.write(f"{done + 1}\n")
    kept = {link.name for link in directory.glob("epoch_*/*.h5")}
    for name in names(done) if done else ():
        if name in kept:
            continue
        yield f"delete {name}"
        (directory / name).unlink()


def train(directory: Path, content: str) -> int:
    """Train one iteration to its end and return its version."""
    for _ in iterate(directory, content):
        pass
    return version_of(directory)


def preserve(directory: Path, epoch: int) -> None:
    """Preserve the newest version by absolute links.

    PBG also keeps the originals for good.
    """
    version = version_of(directory)
    snapshot = directory / f"epoch_{epoch}"
    snapshot.mkdir()
    for name in names(version):
        (snapshot / name).symlink_to(directory.absolute() / name)
    (snapshot / "checkpoint_version.txt").write_text(f"{version}\n")
