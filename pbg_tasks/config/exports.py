"""Exports of a release to formats of other tools.

A graph may have several exports, each with a format and the options of that format.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from pbg_tasks.config.base import Growing
from pbg_tasks.config.comparators import BUILT_IN
from pbg_tasks.config.names import Name, part_name
from pbg_tasks.config.registry import EXPORTS, JOINED, PARTED, SINKS
from pbg_tasks.config.schema import PositiveInt
from pbg_tasks.config.sinks import check_sink


def is_sink(name: str) -> bool:
    """Return whether an export of this name fills a vector store."""
    return name not in EXPORTS.built_in and name in SINKS.names()


def known_format(name: str) -> str:
    """Return the name of an exchange format or a sink.

    Raises:
        ValueError: there is none of this name.
    """
    if is_sink(name):
        return name
    try:
        return EXPORTS.check(name)
    except ValueError as error:
        raise ValueError(f"{error}; sinks: {', '.join(SINKS.names())}") from None


ExportFormat = Annotated[
    str,
    AfterValidator(known_format),
    Field(
        description=f"an {EXPORTS.noun} or a {SINKS.noun}: built in, or an entry point of the group {EXPORTS.group} or "
        f"{SINKS.group}",
        examples=[*EXPORTS.built_in, *SINKS.built_in],
    ),
]
FORMATS = EXPORTS.built_in
Separator = Annotated[str, Field(min_length=1, max_length=8)]
FAISS_COMPARATORS = tuple(name for name, facts in BUILT_IN.items() if facts.metric is not None)
RUN = "{run}"
SNAPSHOT = "{snapshot}"


def no_metric(form: str, comparator: str) -> str:
    """Return why an index cannot hold a model, and a way out.

    Args:
        form: the exchange format or sink.
        comparator: of the model.
    """
    return (
        f"format {form} compares by {', '.join(FAISS_COMPARATORS)}, and has nothing for comparator {comparator!r}: its "
        "neighbours would be others than the model's; export npy or parquet instead"
    )


_WHOLE = {
    "faiss": "is one index a type, which shard_rows builds in bounded memory",
    "word2vec": "is one file a type, which begins with the number of all its rows",
    "word2vec-bin": "is one file a type, which begins with the number of all its rows",
    "safetensors": "is one file, which begins with the places of all tensors",
    "projector": "is a sample of at most limit points of a type",
    "angel-line": "numbers the nodes of all partitions, in files of a million",
}
"""Why formats that are in neither ``PARTED`` nor ``JOINED`` have no parts."""


def no_parts(form: str, options: ExportOptions) -> str | None:
    """Return why an export cannot be in parts; None where it can."""
    if is_sink(form):
        return f"sink {form} is filled as a whole: a table has one writer; leave the parts out"
    if form not in FORMATS:
        return f"format {form} is of a package, whose formats get the whole model; leave the parts out"
    if form not in (*PARTED, *JOINED):
        reason = _WHOLE.get(form, "has no writer of parts")
        return f"format {form} {reason}, so it is written whole; leave the parts out"
    if options.feast:
        return "the option feast defines a source of one table a type, and parts write several; leave one of them out"
    return None


class OptionsOfAll(Growing):
    """Options of every export.

    Attributes:
        types: entity types that are written; all of them when empty.
    """

    types: tuple[str, ...] = ()


class TextOptions(OptionsOfAll):
    """Options of a format that not every name fits.

    Attributes:
        escape: percent-encode characters that a name may not have in the format, instead of refusing the name.
    """

    escape: bool = False


class ParquetOptions(OptionsOfAll):
    """Options of ``parquet``.

    Attributes:
        feast: prefix of the names of Feast feature views, whose definition is written beside the tables; none when
            empty.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("feast",)

    feast: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]{0,39})?$")] = ""


class ProjectorOptions(TextOptions):
    """Options of ``projector``.

    Attributes:
        limit: largest number of points of a type; of more, a regular sample is taken.
    """

    limit: PositiveInt = 100_000


class AngelOptions(TextOptions):
    """Options of ``angel``.

    Attributes:
        layout: matrix format of the embeddings.
    """

    layout: Literal["BinaryColumn", "TextColumn"] = "BinaryColumn"


class AngelLineOptions(TextOptions):
    """Options of ``angel-line``.

    Attributes:
        key_separator: after the node, as a word of Angel's settings or as the characters.
        feature_separator: between numbers, the same.
    """

    key_separator: Separator = "colon"
    feature_separator: Separator = "space"


class RecallOptions(OptionsOfAll):
    """Options of an export whose search is compared with an exact one.

    Attributes:
        neighbors: ``faiss`` and sinks: the k of recall@k.
        queries: ``faiss`` and sinks: number of rows whose neighbours are searched, in the index and exactly.
        min_recall: ``faiss`` and sinks: floor of recall@k; an index below it is not exported.
    """

    neighbors: PositiveInt = 10
    queries: PositiveInt = 1000
    min_recall: Annotated[float, Field(ge=0, le=1)] = 0.9


class FaissOptions(RecallOptions):
    """Options of ``faiss``.

    Attributes:
        index: the index, in the notation of FAISS's ``index_factory``.
        parameters: search parameters stored with the index, such as ``efSearch=128``.
        shard_rows: rows that are held in memory; the lists of an IVF index are then merged on disk, in a file of their
            own. 0: the whole index is held in memory, in one file.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("shard_rows",)

    index: Annotated[str, Field(min_length=1, max_length=200)] = "HNSW32"
    parameters: Annotated[str, Field(max_length=200)] = "efSearch=128"
    shard_rows: Annotated[int, Field(ge=0)] = 0


class PackageOptions(OptionsOfAll):
    """Options of a package's format, or of a sink.

    Attributes:
        options: its own, which a package checks when it writes.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("options",)

    options: dict[str, JsonValue] = Field(default={})


class SinkExportOptions(RecallOptions, PackageOptions):
    """Options of a sink."""


_OPTIONS: dict[str, type[OptionsOfAll]] = {
    "parquet": ParquetOptions,
    "word2vec": TextOptions,
    "word2vec-bin": TextOptions,
    "projector": ProjectorOptions,
    "tsv": TextOptions,
    "angel": AngelOptions,
    "angel-line": AngelLineOptions,
    "faiss": FaissOptions,
}
"""Formats whose writer takes more than the options of all; each writer takes its own class."""


class ExportOptions(ParquetOptions, ProjectorOptions, AngelOptions, AngelLineOptions, FaissOptions, SinkExportOptions):
    """Options of an export of any format, as specs give them.

    A format refuses those that it does not have.
    """

    later_keys: ClassVar[tuple[str, ...]] = (
        *PackageOptions.later_keys,
        *ParquetOptions.later_keys,
        *FaissOptions.later_keys,
    )

    def foreign_to(self, format_name: str) -> list[str]:
        """Return the changed options that a format does not have."""
        if is_sink(format_name):
            known = SinkExportOptions.model_fields
        else:
            known = _OPTIONS.get(format_name, OptionsOfAll if format_name in FORMATS else PackageOptions).model_fields
        return [
            name
            for name, field in ExportOptions.model_fields.items()
            if name not in known and getattr(self, name) != field.default
        ]


class Export(ExportOptions):
    """One export of a graph spec.

    Attributes:
        format: of the files, or the sink.
        name: distinguishes exports of one graph; the format by default.
        destination: directory, local or ``s3://``, with ``{run}`` or ``{snapshot}`` at the place of a night's own part;
            ``{store}/exports/{name}/{run}`` by default. A sink's is one place for all nights, ``{store}/sinks/{name}``
            by default, because its tables have names of their own.
        parts: ``parquet``, ``npy``, ``tsv``, ``angel``: number of mapped tasks of the DAGs that write a file for each
            of their partitions; 1: one task writes a file for each type.
    """

    later_keys: ClassVar[tuple[str, ...]] = (*ExportOptions.later_keys, "parts")

    format: ExportFormat
    name: Name = ""
    destination: str | None = None
    parts: Annotated[int, Field(ge=1, le=1000)] = 1

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
        if self.parts > 1 and (reason := no_parts(self.format, self)) is not None:
            raise ValueError(f"parts is {self.parts}, and {reason}")
        if self.is_sink:
            self._check_sink()
        elif self.destination is not None and RUN not in self.destination and SNAPSHOT not in self.destination:
            raise ValueError("destination must contain {run} or {snapshot}, or every night would write the same place")
        return self

    def _check_sink(self) -> None:
        place = self.destination
        if place is not None and (RUN in place or SNAPSHOT in place):
            raise ValueError(
                f"the destination of sink {self.format} is one place for all nights, without {{run}} or {{snapshot}}: "
                "each release has tables of its own there"
            )
        if place is None and self.format != "lancedb":
            raise ValueError(f"the destination is missing: sink {self.format} has no place of its own in the store")
        check_sink(self.format, place, self.options)

    @property
    def is_sink(self) -> bool:
        """Whether this export fills a vector store."""
        return is_sink(self.format)

    def shares_aliases(self, other: Export, store: str, collection: str) -> bool:
        """Return whether another sink's export serves tables under the same aliases.

        Args:
            other: of the same graph.
            store: root of the graph's store.
            collection: of exports whose options name none.
        """
        ours, theirs = (each.options.get("collection") or collection for each in (self, other))
        places = (self.format, self.place(store), ours), (other.format, other.place(store), theirs)
        return places[0] == places[1] and (not self.types or not other.types or bool({*self.types} & {*other.types}))

    @property
    def task(self) -> str:
        """Name under which a run stores its result."""
        return f"export-{self.name}"

    def part_task(self, part: str) -> str:
        """Return the name of the result of part ``i/n``."""
        return part_name(self.task, part)

    @property
    def shared(self) -> bool:
        """Whether all runs of a snapshot write to one place."""
        return not self.is_sink and RUN not in self._pattern("")

    def place(self, store: str) -> str:
        """Return the part of the destination that all nights share.

        Args:
            store: root of the graph's store.
        """
        where = self._pattern(store)
        if self.is_sink:
            return where.rstrip("/")
        return where[: min(where.index(mark) for mark in (RUN, SNAPSHOT) if mark in where)].rstrip("/")

    def resolve(self, store: str, *, run: str, snapshot: str) -> str:
        """Return the destination of one run."""
        return self._pattern(store).replace(RUN, run).replace(SNAPSHOT, snapshot)

    def _pattern(self, store: str) -> str:
        usual = f"sinks/{self.name}" if self.is_sink else f"exports/{self.name}/{RUN}"
        return self.destination or f"{store.rstrip('/')}/{usual}"
