"""Import and export compared with bare DuckDB and Arrow.

Ours are made of these libraries. Each pipeline here turns the same file into a directory that PBG trains from, or a
checkpoint into the same table, and does nothing beyond: it shows the cost of our checks and promises.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks.speed.epochs import MODEL
from benchmarks.speed.importing import write_edges_tsv
from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import entity_count_file_name, entity_names_file_name
from pbg_tasks.progress import human_count
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.training.train import train_directory

if TYPE_CHECKING:
    import duckdb

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.workloads import Document

PARTITIONS = 4
_EDGES, _QUICK_EDGES = 10_000_000, 1_000_000
_MORE_EDGES, _MORE_ROUNDS = 50_000_000, 3
_ROWS, _QUICK_ROWS = 100_000, 20_000
_ENTITIES_PER_EDGE = 0.1
_COLUMNS = ("lhs", "rel", "rhs")
_FORMAT_VERSION = 1  # of PBG's files

_DUTIES_NOTE = (
    "rows are checked, ids and the order of edges follow from names alone, and files have hashes, as ours; still all "
    "in memory, not whole at once, and without our files of ids"
)
_IMPORT_NOTE = (
    f"all cores, {PARTITIONS} partitions; the library alone holds all in memory, checks no row, keeps no ids, mixes no "
    "edges within a bucket, and neither excludes a second import nor puts files in place whole"
)
_TSV_NOTE = (
    "Arrow writes a float32's digits, we PBG's nine decimals; it holds all in memory, checks no name, and does not put "
    "the file in place whole"
)
_PARQUET_NOTE = (
    "neither compresses; Arrow alone holds all in memory, checks neither vectors nor names, and writes no hashes"
)


class _Graph(NamedTuple):
    """A graph in numbers.

    Attributes:
        names: of each partition, in the order of their offsets.
        bucket: int64 or uint8 (N,), of each edge.
        lhs: int64 (N,), offsets.
        rhs: int64 (N,), offsets.
    """

    names: list[list[str]]
    bucket: np.ndarray
    lhs: np.ndarray
    rhs: np.ndarray


class Bare:
    """An import by a library alone.

    It has one entity type and one relation.

    Args:
        config: names both, and the paths.
    """

    def __init__(self, config: Document) -> None:
        (self._entity,) = config["entities"]
        self._entities, self._edges = Path(config["entity_path"]), Path(config["edge_paths"][0])

    def import_tsv(self, files: list[str]) -> int:
        """Import one file of ``lhs rel rhs`` again; return its edges."""
        (file,) = files
        for directory in (self._entities, self._edges):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        names, bucket, lhs, rhs = self._read(file)
        for part, some in enumerate(names):
            (self._entities / entity_names_file_name(self._entity, part)).write_text(json.dumps(some), encoding="ascii")
            (self._entities / entity_count_file_name(self._entity, part)).write_text(str(len(some)), encoding="ascii")
        stops = np.cumsum(np.bincount(bucket, minlength=PARTITIONS**2)).tolist()
        for number, (start, stop) in enumerate(pairwise([0, *stops])):
            with h5py.File(self._edges / edge_file_name(*divmod(number, PARTITIONS)), "w") as out:
                out.attrs["format_version"] = _FORMAT_VERSION
                out["lhs"], out["rhs"] = lhs[start:stop], rhs[start:stop]
                out["rel"] = np.zeros(stop - start, np.int64)
        return len(bucket)

    def _read(self, file: str) -> _Graph:
        """Return names, and edges in the order of their buckets."""
        raise NotImplementedError


_NAMES = "(SELECT lhs AS name FROM raw UNION SELECT rhs FROM raw)"


class DuckDB(Bare):
    """By DuckDB.

    Entity i is in partition ``i % PARTITIONS`` at offset ``i // PARTITIONS``.
    """

    ids = f"""
        SELECT name, id % {PARTITIONS} AS part, id // {PARTITIONS} AS "offset"
        FROM (SELECT name, row_number() OVER () - 1 AS id FROM {_NAMES})
    """  # noqa: S608 - our own text
    columns = "lhs, rhs"
    order = ""
    """Of the edges of a bucket."""

    def _read(self, file: str) -> _Graph:
        import duckdb

        columns = ", ".join(f"'{name}': 'VARCHAR'" for name in _COLUMNS)
        with duckdb.connect() as connection:
            connection.execute(
                f"""
                SET preserve_insertion_order = false;
                CREATE TABLE raw AS SELECT {self.columns} FROM read_csv(
                    '{file}', delim = '\t', header = false, quote = '', escape = '', auto_detect = false,
                    columns = {{{columns}}});
                """  # noqa: S608 - our own file
            )
            self.check(connection)
            connection.execute(f"CREATE TABLE ids AS {self.ids}")
            of_part = 'SELECT name FROM ids WHERE part = {} ORDER BY "offset"'
            parts = [connection.sql(of_part.format(part)).to_arrow_table() for part in range(PARTITIONS)]
            edges = connection.sql(
                f"""
                SELECT l.part * {PARTITIONS} + r.part AS bucket, l."offset" AS lhs, r."offset" AS rhs
                FROM raw JOIN ids l ON l.name = raw.lhs JOIN ids r ON r.name = raw.rhs ORDER BY bucket{self.order}
                """  # noqa: S608 - same
            ).to_arrow_table()
        names = [part["name"].to_pylist() for part in parts]
        return _Graph(names, *(edges[name].to_numpy() for name in ("bucket", "lhs", "rhs")))

    def check(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Check rows."""


class DutifulDuckDB(DuckDB):
    """By DuckDB, with our checks, our order and our hashes."""

    ids = f"""
        SELECT name, part, row_number() OVER (PARTITION BY part ORDER BY name) - 1 AS "offset",
            (md5_number(name) & {2**64 - 1})::UBIGINT AS word
        FROM (SELECT name, ((md5_number(name) >> 64)::UBIGINT % {PARTITIONS})::INTEGER AS part FROM {_NAMES})
    """  # noqa: S608 - our own text
    columns = "lhs, rel, rhs"
    order = ", xor(l.word, (r.word >> 1)), lhs, rhs"

    def import_tsv(self, files: list[str]) -> int:
        """Import, and hash the files."""
        edges = super().import_tsv(files)
        for path in (*self._entities.iterdir(), *self._edges.iterdir()):
            with path.open("rb") as file:
                hashlib.file_digest(file, "sha256")
        return edges

    def check(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Check that names are there, short and without NUL, and relations known."""
        checks = "{0} IS NULL OR {0} = '' OR contains({0}, chr(0)) OR strlen({0}) > 4096"
        bad = " OR ".join([*map(checks.format, _COLUMNS), "rel NOT IN (SELECT 'follow')"])
        (found,) = connection.execute(f"SELECT count(*) FILTER ({bad}) FROM raw").fetchall()  # noqa: S608 - same
        if found != (0,):
            raise ValueError(f"{found} bad rows")


class Arrow(Bare):
    """By Arrow and numpy."""

    def _read(self, file: str) -> _Graph:
        table = csv.read_csv(
            file,
            read_options=csv.ReadOptions(column_names=_COLUMNS),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(
                include_columns=["lhs", "rhs"], column_types=dict.fromkeys(_COLUMNS, pa.string())
            ),
        )
        # In one chunk: those of a chunked array would each bring the whole dictionary.
        ends = pa.chunked_array([*table["lhs"].chunks, *table["rhs"].chunks]).combine_chunks().dictionary_encode()
        names, ids = ends.dictionary.to_pylist(), ends.indices.to_numpy()
        lhs, rhs = ids[: len(table)], ids[len(table) :]
        bucket = (lhs % PARTITIONS * PARTITIONS + rhs % PARTITIONS).astype(np.uint8)
        order = np.argsort(bucket, kind="stable")  # the sort of bytes is a radix sort
        lhs, rhs = ((side[order] // PARTITIONS).astype(np.int64) for side in (lhs, rhs))
        return _Graph([names[part::PARTITIONS] for part in range(PARTITIONS)], bucket[order], lhs, rhs)


_OF_DUCKDB = 0.8  # of the speed of its bare import; ours validates and maps names beside it
_RIVALS = {
    "DuckDB": (DuckDB, _IMPORT_NOTE),
    "DuckDB with our duties": (DutifulDuckDB, _DUTIES_NOTE),
    "Arrow": (Arrow, _IMPORT_NOTE),
}


class OurExport:
    """Our exports of a checkpoint.

    Args:
        config: names it.
        folder: for the files; made here.
    """

    def __init__(self, config: Document, folder: str) -> None:
        self._config, self._folder = ConfigSchema(**config), Path(folder)
        self._folder.mkdir()

    def tsv(self) -> int:
        """Write PBG's text; return its rows."""
        outputs = {f"{name}_output": str(self._folder / f"{name}.tsv") for name in ("entities", "relation_types")}
        return export_directory(self._config, **outputs, overwrite=True)["entities"]

    def parquet(self) -> int:
        """Write the Parquet of ``pbg export parquet`` again; return its rows."""
        target = self._folder / "parquet"
        shutil.rmtree(target, ignore_errors=True)
        types = export("parquet", self._config, str(target))["types"]
        return sum(each["rows"] for each in types.values())


class ArrowExport:
    """Arrow's own writers of the same tables, of one partition.

    Args:
        config: as ``OurExport``'s.
        folder: for the files; made here.
    """

    def __init__(self, config: Document, folder: str) -> None:
        (self._entity,) = config["entities"]
        self._names = Path(config["entity_path"]) / entity_names_file_name(self._entity, 0)
        self._embeddings = Path(config["checkpoint_path"]) / embeddings_file_name(self._entity, 0, 1)
        self._folder = Path(folder)
        self._folder.mkdir()

    def _read(self) -> tuple[pa.Array, np.ndarray]:
        with h5py.File(self._embeddings) as file:
            return pa.array(json.loads(self._names.read_text(encoding="ascii"))), file["embeddings"][:]

    def tsv(self) -> int:
        """Write a column of names and one for each dimension.

        Returns the rows.
        """
        names, vectors = self._read()
        columns = [names, *np.ascontiguousarray(vectors.T)]
        table = pa.table(columns, names=list(map(str, range(len(columns)))))
        options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        csv.write_csv(table, self._folder / "entities.tsv", options)
        return len(vectors)

    def parquet(self) -> int:
        """Write ids, embeddings and their type; return the rows."""
        names, vectors = self._read()
        kind = pa.DictionaryArray.from_arrays(np.zeros(len(names), np.int8), [self._entity])
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        table = pa.table({"id": names, "embedding": lists, "type": kind})
        pq.write_table(
            table, self._folder / "table.parquet", compression="none", use_dictionary=["type"], write_statistics=False
        )
        return len(vectors)


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare an import with both libraries, and exports with Arrow."""
    return [
        *_imports(tools, _QUICK_EDGES if quick else _EDGES),
        *([] if quick else _imports(replace(tools, pairs=_MORE_ROUNDS), _MORE_EDGES)),
        *_exports(tools, _QUICK_ROWS if quick else _ROWS),
    ]


def _imports(tools: Tools, edges: int) -> list[Measurement]:
    source = tools.directory / "edges.tsv"
    write_edges_tsv(source, edges=edges, entities=int(edges * _ENTITIES_PER_EDGE))
    parted = LIVEJOURNAL | {"entities": {"user_id": {"num_partitions": PARTITIONS}}}
    places = {"ours": "benchmarks.speed.importing:Ours"}
    places |= {name: f"{__name__}:{each.__name__}" for name, (each, _) in _RIVALS.items()}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(tools.ours(place, config=placed(parted, tools.directory / name)))
            for name, place in places.items()
        }
        sides = {name: partial(worker, "import_tsv", files=[str(source)]) for name, worker in workers.items()}
        rounds = in_turns(tools.pairs, sides)
    title = f"import of {human_count(edges)} edges"
    found = []
    for name, (_, note) in _RIVALS.items():
        peaks = {"our peak B": rounds["ours"][-1].peak, f"peak B of {name}": rounds[name][-1].peak}
        rate = Measurement.rate(f"{title}, against {name}", "edges/cpu-s", rounds["ours"], rounds[name])
        target = _OF_DUCKDB if name == "DuckDB" else None
        found.append(replace(rate, note=f"{note}; {tools.pairs} rounds", details=peaks, target=target))
    return found


def _exports(tools: Tools, rows: int) -> list[Measurement]:
    config = RandomGraph(rows, rows, names=True).write(MODEL, tools.directory / "graph")
    train_directory(ConfigSchema(**config))
    found = []
    with (
        tools.ours(f"{__name__}:OurExport", config=config, folder=str(tools.directory / "our-export")) as mine,
        tools.ours(f"{__name__}:ArrowExport", config=config, folder=str(tools.directory / "arrow-export")) as arrow,
    ):
        for what, note in (("tsv", _TSV_NOTE), ("parquet", _PARQUET_NOTE)):
            rounds = in_turns(tools.pairs, {"ours": partial(mine, what), "Arrow": partial(arrow, what)})
            title = f"export of {human_count(rows)} rows as {what}, against Arrow"
            found.append(Measurement.rate(title, "rows/cpu-s", rounds["ours"], rounds["Arrow"], note=note))
    return found
