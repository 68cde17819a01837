"""Exports of a release to formats of other tools.

A graph may have several exports, each with a format and the options of that format.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from pbg_tasks.config.base import Growing
from pbg_tasks.config.comparators import BUILT_IN
from pbg_tasks.config.names import Name
from pbg_tasks.config.registry import EXPORTS
from pbg_tasks.config.schema import PositiveInt, named

ExportFormat = Annotated[str, *named(EXPORTS)]
FORMATS = EXPORTS.built_in
Separator = Annotated[str, Field(min_length=1, max_length=8)]
FAISS_COMPARATORS = tuple(name for name, facts in BUILT_IN.items() if facts.metric is not None)
RUN = "{run}"
SNAPSHOT = "{snapshot}"
_OPTIONS: dict[str, tuple[str, ...]] = {
    "word2vec": ("escape",),
    "word2vec-bin": ("escape",),
    "projector": ("escape", "limit"),
    "tsv": ("escape",),
    "angel": ("escape", "layout"),
    "angel-line": ("escape", "key_separator", "feature_separator"),
    "faiss": ("index", "parameters", "neighbors", "queries", "min_recall"),
}


def no_faiss(comparator: str) -> str:
    """Return why FAISS cannot hold a model, and a way out."""
    return (
        f"format faiss compares by {', '.join(FAISS_COMPARATORS)}, and has nothing for comparator {comparator!r}: its "
        "neighbours would be others than the model's; export npy or parquet instead"
    )


class ExportOptions(Growing):
    """Options of an export.

    A format has some of them; any other must keep its default.

    Attributes:
        types: entity types that are written; all of them when empty.
        escape: percent-encode characters that a name may not have in the format, instead of refusing the name.
        limit: projector: largest number of points of a type; of more, a regular sample is taken.
        layout: angel: matrix format of the embeddings.
        key_separator: angel-line: after the node, as a word of Angel's settings or as the characters.
        feature_separator: angel-line: between numbers, the same.
        index: faiss: the index, in the notation of FAISS's ``index_factory``.
        parameters: faiss: search parameters stored with the index, such as ``efSearch=128``.
        neighbors: faiss: the k of recall@k.
        queries: faiss: number of rows whose neighbours are searched, in the index and exactly.
        min_recall: faiss: floor of recall@k; an index below it is not exported.
        options: formats of other packages: their own options, which the package checks when it writes.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("options",)

    types: tuple[str, ...] = ()
    escape: bool = False
    limit: PositiveInt = 100_000
    layout: Literal["BinaryColumn", "TextColumn"] = "BinaryColumn"
    key_separator: Separator = "colon"
    feature_separator: Separator = "space"
    index: Annotated[str, Field(min_length=1, max_length=200)] = "HNSW32"
    parameters: Annotated[str, Field(max_length=200)] = "efSearch=128"
    neighbors: PositiveInt = 10
    queries: PositiveInt = 1000
    min_recall: Annotated[float, Field(ge=0, le=1)] = 0.9
    options: dict[str, JsonValue] = Field(default={})

    def foreign_to(self, format_name: str) -> list[str]:
        """Return the changed options that a format does not have."""
        known = {"types", *(_OPTIONS.get(format_name, ()) if format_name in FORMATS else ("options",))}
        return [
            name
            for name, field in ExportOptions.model_fields.items()
            if name not in known and getattr(self, name) != field.default
        ]


class Export(ExportOptions):
    """One export of a graph spec.

    Attributes:
        format: of the files.
        name: distinguishes exports of one graph; the format by default.
        destination: directory, local or ``s3://``, with ``{run}`` or ``{snapshot}`` at the place of a night's own part;
            ``{store}/exports/{name}/{run}`` by default.
    """

    format: ExportFormat
    name: Name = ""
    destination: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: object) -> object:
        if isinstance(data, dict) and "format" in data and not data.get("name"):
            return data | {"name": data["format"]}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if foreign := self.foreign_to(self.format):
            raise ValueError(f"format {self.format} has no option {foreign[0]!r}")
        if self.destination is not None and RUN not in self.destination and SNAPSHOT not in self.destination:
            raise ValueError("destination must contain {run} or {snapshot}, or every night would write the same place")
        return self

    @property
    def task(self) -> str:
        """Name under which a run stores its result."""
        return f"export-{self.name}"

    @property
    def shared(self) -> bool:
        """Whether all runs of a snapshot write to one place."""
        return RUN not in self._pattern("")

    def place(self, store: str) -> str:
        """Return the part of the destination that all nights share.

        Args:
            store: root of the graph's store.
        """
        where = self._pattern(store)
        return where[: min(where.index(mark) for mark in (RUN, SNAPSHOT) if mark in where)].rstrip("/")

    def resolve(self, store: str, *, run: str, snapshot: str) -> str:
        """Return the destination of one run."""
        return self._pattern(store).replace(RUN, run).replace(SNAPSHOT, snapshot)

    def _pattern(self, store: str) -> str:
        return self.destination or f"{store.rstrip('/')}/exports/{self.name}/{RUN}"
