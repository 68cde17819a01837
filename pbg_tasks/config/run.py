"""The run spec: everything one run depends on, resolved once, hashed, stored and never changed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pbg_tasks.config.base import Frozen, canonical_json, digest
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.config.schema import ConfigSchema

# A snapshot key becomes part of object keys: no "/", no leading dot.
SnapshotKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,63}$")]


class SnapshotFile(Frozen):
    """One file of the snapshot as it was when the run was planned.

    Attributes:
        uri: where it lies.
        size: bytes.
        version: the store's version tag; a file that changed since is refused.
    """

    uri: str
    size: int
    version: str


class Previous(Frozen):
    """The release this run starts from: its ids are kept, its vectors are tonight's starting point.

    Attributes:
        manifest: key of its manifest below the graph's store.
        sha256: hash of that manifest.
        snapshot: the snapshot it was made from.
        warm_start: whether its vectors are taken over (its ids always are).
        reason: why not, where not.
    """

    manifest: str
    sha256: str
    snapshot: str
    warm_start: bool
    reason: str = ""


class RunSpec(Frozen):
    """One run as a value: the same inputs give the same spec, the same id, the same place."""

    format: Literal[1] = 1
    graph: GraphSpec
    snapshot: SnapshotKey
    files: tuple[SnapshotFile, ...] = Field(min_length=1)
    previous: Previous | None = None
    publish: bool = True

    @property
    def run_id(self) -> str:
        """``{snapshot}-{first 12 hex digits of the spec's hash}``."""
        return f"{self.snapshot}-{digest(self.model_dump(mode='json'))[:12]}"

    @property
    def epochs(self) -> int:
        """How many epochs this run trains."""
        warm = self.previous is not None and self.previous.warm_start
        return (self.graph.train.warm_epochs if warm else None) or self.graph.model.num_epochs

    def to_bytes(self) -> bytes:
        """Return the canonical JSON that is stored."""
        return canonical_json(self.model_dump(mode="json"))

    def pbg_config(self, run_url: str) -> ConfigSchema:
        """Return the PBG config of this run, with the paths below ``run_url``."""
        layout = RunLayout()
        return ConfigSchema(
            **self.graph.model.model_copy(update={"num_epochs": self.epochs}).model_dump(),
            entity_path=f"{run_url}/{layout.entities}",
            edge_paths=(f"{run_url}/{layout.edges('train')}",),
            checkpoint_path=f"{run_url}/{layout.checkpoint}",
        )


class RunLayout:
    """Where things lie below a run's URL."""

    spec = "spec.json"
    entities = "entities"
    entities_manifest = "entities/manifest.json"
    checkpoint = "checkpoint"

    def edges(self, split: str) -> str:
        """Return the edge path of ``train``, ``valid`` or ``test``."""
        return f"edges/{split}"

    edges_manifest = "edges/manifest.json"

    def result(self, task: str) -> str:
        """Return the key of a task's result."""
        return f"results/{task}.json"
