"""Run spec: everything one run depends on.

It is resolved once, hashed, stored and never changed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pbg_tasks.config.base import Frozen, canonical_json, digest
from pbg_tasks.config.graph import DeltaEpochs, GraphSpec
from pbg_tasks.config.nights import SNAPSHOT_KEY, SnapshotKey, Walk
from pbg_tasks.config.schema import ConfigSchema, ModelConfig
from pbg_tasks.errors import ConfigError

_EARLIER_VARIANCE = 1.0
_FORM = ("dynamic_relations", "comparator", "bias", "global_emb")

Reason = Annotated[str, Field(min_length=1, max_length=500)]


def check_snapshot_key(key: str) -> None:
    """Refuse a key that could lead out of its folder.

    Raises:
        ConfigError: the message names the key and the characters it may have.
    """
    if not re.fullmatch(SNAPSHOT_KEY, key):
        raise ConfigError(
            f"snapshot {key!r}: a key has up to 64 letters, digits and _.:+- and starts with a letter or digit"
        )


class SnapshotFile(Frozen):
    """File of the snapshot as it was when the run was planned.

    Attributes:
        uri: its location.
        size: bytes.
        version: the store's version tag; a file that has changed since is refused.
    """

    uri: str
    size: int
    version: str


class Previous(Frozen):
    """The release that a run continues.

    Attributes:
        seq: its number in the channel.
        snapshot: of the edges it was made from.
        run: the run that made it.
        directory: key of its checkpoint directory below the graph's store.
        manifest_sha256: hash of that directory's manifest.
        keep_ids: whether its entities keep their partition and offset.
        warm_start: whether training starts from its vectors and optimizer sums.
        reason: why it does not, where it does not.
    """

    seq: int
    snapshot: str
    run: str
    directory: str
    manifest_sha256: str
    keep_ids: bool
    warm_start: bool
    reason: str = ""


class RunSpec(Frozen):
    """One run as a value.

    The same inputs give the same spec, the same id, the same place.

    Attributes:
        graph: the spec, with every choice made.
        snapshot: key of the edges.
        files: of the snapshot; none where its producer finished it without any.
        walk: whether the run depends on the night before.
        previous: the release it continues; None for the first night of a chain and for independent nights.
        publish: whether it may become a release.
        accepted: reason for which the night goes on even if the data gate or its limits refuse it; None: they decide.
    """

    format: Literal[1] = 1
    graph: GraphSpec
    snapshot: SnapshotKey
    files: tuple[SnapshotFile, ...]
    walk: Walk = "chain"
    previous: Previous | None = None
    publish: bool = True
    accepted: Reason | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_earlier_variance(cls, data: Any) -> Any:  # noqa: ANN401 - any document
        """Give a run without a stored variance the earlier default."""
        match data:
            case {"graph": {"model": {"gradient": "sampled"} as model} as graph} if "gradient_variance" not in model:
                earlier = {**model, "gradient_variance": _EARLIER_VARIANCE}
                return {**data, "graph": {**graph, "model": earlier}}
        return data

    @model_validator(mode="after")
    def _resolved(self) -> Self:
        if self.graph.model.auto_partitioned:
            raise ValueError("num_partitions: auto must be resolved before a run is made")
        return self

    @property
    def run_id(self) -> str:
        """``{snapshot}-{first 12 hex digits of the spec's hash}``."""
        return run_id_of(self.snapshot, self.to_bytes())

    @property
    def epochs(self) -> int:
        """Number of epochs that this run trains."""
        warm = self.previous is not None and self.previous.warm_start
        return (self.graph.train.warm_epochs if warm else None) or self.graph.model.num_epochs

    @property
    def delta(self) -> DeltaEpochs | None:
        """Rule for the edges to train; None: all."""
        return self.graph.train.delta if self.previous is not None and self.previous.warm_start else None

    def to_bytes(self) -> bytes:
        """Return the canonical JSON that is stored."""
        return canonical_json(self.model_dump(mode="json"))

    def pbg_config(self, run_url: str) -> ConfigSchema:
        """Return the PBG config of this run, with the paths below ``run_url``."""
        return ConfigSchema(
            **self.graph.model.model_copy(update={"num_epochs": self.epochs}).model_dump(),
            entity_path=f"{run_url}/{RunLayout.entities}",
            edge_paths=(f"{run_url}/{RunLayout.edges}/train",),
            checkpoint_path=f"{run_url}/{RunLayout.checkpoint}",
        )


RUN_ID = f"{SNAPSHOT_KEY.removesuffix('$')}-[0-9a-f]{{12}}$"
"""Pattern of the results of ``run_id_of``."""


def run_id_of(snapshot: str, document: bytes) -> str:
    """Return the id of a run, from its key and stored spec."""
    return f"{snapshot}-{hashlib.sha256(document).hexdigest()[:12]}"


DELTA = "delta"
"""Folder below ``RunLayout.edges``, beside those of the splits, with the edges of ``train`` that a delta night trains.
"""


class RunLayout:
    """Keys below a run's URL."""

    spec = "spec.json"
    planned = "planned.json"
    snapshot = "snapshot"
    entities = "entities"
    edges = "edges"
    start = "start"
    checkpoint = "checkpoint"
    candidates = "candidates"
    release = "release"

    @staticmethod
    def result(task: str) -> str:
        """Return the key of a task's result."""
        return f"results/{task}.json"


def id_layout(model: ModelConfig) -> str:
    """Return the hash of the settings that determine an entity's place.

    It must stay equal for ids to be kept.
    """
    return digest({name: entity.num_partitions for name, entity in model.entities.items()})


def vector_space(model: ModelConfig) -> str:
    """Return the hash of the settings that give embeddings their meaning.

    It must stay equal for a warm start.
    """
    return digest(_meaning(model))


def other_meaning(before: ModelConfig, now: ModelConfig) -> str:
    """Name the keys that give two models' embeddings another meaning."""
    was, is_now = _meaning(before), _meaning(now)
    keys = ["dimension"] * (was["dimensions"] != is_now["dimensions"])
    keys += [key for key in _FORM if getattr(before, key) != getattr(now, key)]
    return ", ".join([*keys, *["relations"] * (was["relations"] != is_now["relations"])])


def _meaning(model: ModelConfig) -> dict[str, object]:
    # Keys that PBG lacks are hashed only where they are set, so that stored hashes stay valid.
    relations = [(r.name, r.lhs, r.rhs, r.operator, *(["reciprocal"] * r.reciprocal)) for r in model.relations]
    return {
        "dimensions": {name: model.entity_dimension(name) for name in model.entities},
        "relations": [(r[1:] if model.relations_from_data else r) for r in relations],
        "form": [getattr(model, key) for key in _FORM],
    }
