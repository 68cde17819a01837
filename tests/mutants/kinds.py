"""Small valid files of every kind that is read from outside.

Each comes with the function by which the product reads it.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import shutil
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.angel import MatrixLayout, write_line, write_mapping, write_matrix
from pbg_tasks.formats.edges import EdgeList, Features, edge_facts, read_edges, write_edges
from pbg_tasks.formats.embeddings import read_embeddings, write_embeddings
from pbg_tasks.formats.metadata import IterationInfo, read_iteration
from pbg_tasks.formats.model import ModelState, read_model, write_model
from tests.api.conftest import Trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EDGES, ROWS, COLUMNS = 60, 40, 4
INFO = IterationInfo(2, 1, 1, 0, "edges", 1, 0)
CONFIG = ConfigSchema(
    entities={"n": {"num_partitions": 1}},
    relations=[{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
    dimension=COLUMNS,
    entity_path="e",
    edge_paths=("x",),
    checkpoint_path="c",
)
NAMES = [f"e{number}" for number in range(ROWS)]


class Kind(NamedTuple):
    """One kind of file.

    Attributes:
        make: writes the files in an empty directory, and returns the one to be damaged.
        read: reads the files; returns the contents by aspect (``numbers``, ``names``, ``count``, ``settings``).
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], dict[str, str]]


def digest(*values: object) -> str:
    """Return a short text that equal values share."""
    found = hashlib.sha256()
    for value in values:
        found.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        found.update(b"\0")
    return found.hexdigest()[:16]


def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def edges(**features: Features) -> EdgeList:
    lhs, rhs, rel = np.random.default_rng(1).integers(0, 30, (3, EDGES))
    if features:
        lhs = np.full(EDGES, -1)
    return EdgeList(lhs, rhs, rel, np.linspace(0, 1, EDGES, dtype=np.float32), **features)


def foreign(path: Path) -> Path:
    """Let a file count as one of another program."""
    os.utime(path, ns=(1, 1))
    return path


def plain_edges(place: Path) -> Path:
    write_edges(place / "edges_0_0.h5", edges())
    return foreign(place / "edges_0_0.h5")


def featurized_edges(place: Path) -> Path:
    write_edges(place / "edges_0_0.h5", edges(lhs_features=Features(np.arange(EDGES + 1), np.arange(EDGES))))
    return foreign(place / "edges_0_0.h5")


def compressed_edges(place: Path, *, fletcher32: bool = False) -> Path:
    with h5py.File(place / "edges_0_0.h5", "w") as file:
        file.attrs["format_version"] = 1
        listed = edges()
        for name in ("lhs", "rhs", "rel", "weight"):
            options = {"chunks": (16,), "maxshape": (None,), "compression": "gzip", "shuffle": True}
            file.create_dataset(name, data=getattr(listed, name), fletcher32=fletcher32, **options)
    return place / "edges_0_0.h5"


def read_bucket(place: Path) -> dict[str, str]:
    path = place / "edges_0_0.h5"
    facts, found = edge_facts(path), read_edges(path)
    columns = (found.lhs, found.rhs, found.rel, found.weight, found.lhs_features, found.rhs_features)
    return {"count": digest(facts, len(found)), "numbers": digest(*columns)}


def embeddings(place: Path) -> Path:
    write_embeddings(place / "e.h5", rows(), rows()[:, 0] ** 2, lr=0.1, iteration=INFO, config=CONFIG)
    return foreign(place / "e.h5")


def compressed_embeddings(place: Path) -> Path:
    with h5py.File(place / "e.h5", "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset("embeddings", data=rows(), chunks=(16, 3), compression="gzip", fletcher32=True)
    return place / "e.h5"


def row_optimizer(place: Path) -> Path:
    """Write PBG's embeddings file, with sums in the blob only."""
    with h5py.File(embeddings(place), "r+") as file:
        del file["optimizer/plain"]
    return foreign(place / "e.h5")


def read_partition(place: Path) -> dict[str, str]:
    found, sums = read_embeddings(place / "e.h5")
    iteration = read_iteration(place / "e.h5")
    return {"count": digest(found.shape, sums is None), "numbers": digest(found, sums), "settings": digest(iteration)}


def model(place: Path) -> Path:
    params = {f"relations/{index}/operator/rhs/translation": row for index, row in enumerate(rows()[:5])}
    params |= {"relations/5/operator/rhs/linear_transformation": rows()[:COLUMNS]}
    state = ModelState(params, {name: value**2 for name, value in params.items()})
    write_model(place / "m.h5", state, config=CONFIG, iteration=INFO)
    return foreign(place / "m.h5")


def model_optimizer(place: Path) -> Path:
    """Write PBG's model file, with sums in the blob only."""
    with h5py.File(model(place), "r+") as file:
        del file["optimizer/plain"]
    return foreign(place / "m.h5")


def read_shared(place: Path) -> dict[str, str]:
    state = read_model(place / "m.h5")
    shapes = [(name, value.shape) for name, value in state.params.items()]
    return {"count": digest(shapes, bool(state.sums)), "numbers": digest(*state.params.values(), *state.sums.values())}


def of_directory(*file: str) -> Kind:
    """Return the kind of a file in a checkpoint directory.

    ``Model.open`` reads it.
    """

    def make(place: Path) -> Path:
        settings = {"name": "all", "lhs": "n", "rhs": "n", "operator": "translation"}
        keys = {"relations": [settings], "dynamic_relations": True, "relation_names": ["r", "s"]}
        Trained(place, version=1, sizes={"n": 10}, entities={"n": {"num_partitions": 1}}, **keys)
        return foreign(place.joinpath(*file))

    return Kind(make, read_directory)


def read_directory(place: Path) -> dict[str, str]:
    from pbg_tasks.api.loading import open_contents
    from pbg_tasks.tasks.model_source import locate
    from pbg_tasks.tasks.runs.dataset import EntityPath

    with ExitStack() as resources:
        find = partial(locate, place / "checkpoint", entity_path=place / "entities")
        contents = open_contents(resources, find, scratch=place / "s")
        counts = EntityPath(contents.config.model_copy(update={"entity_path": str(place / "entities")}), place)
        tables = contents.entities.values()
        vectors = [part for each in tables for part in each.vectors.partitions]
        sizes = [len(each.names) for each in tables]
        return {
            "count": digest(counts.listed, counts.relation_count, contents.version, sizes),
            "names": digest(contents.relations, [each.names.names() for each in tables]),
            "numbers": digest(*contents.params.values(), *vectors),
            "settings": digest(contents.config),
        }


def of_edge_list(form: str) -> Kind:
    """Return the kind of a list of edges, which ``pbg import`` reads."""

    def make(place: Path) -> Path:
        listed = edges()
        table = pa.table({"lhs": [NAMES[i] for i in listed.lhs], "rhs": [NAMES[i] for i in listed.rhs]})
        if form == "parquet":
            pq.write_table(table, place / "list.parquet")
            return place / "list.parquet"
        lines = zip(table["lhs"].to_pylist(), table["rhs"].to_pylist(), strict=True)
        (place / "list.tsv").write_text("".join(f"{lhs}\t{rhs}\n" for lhs, rhs in lines))
        return place / "list.tsv"

    return Kind(make, lambda place: read_edge_list(place, form))


def read_edge_list(place: Path, form: str) -> dict[str, str]:
    from pbg_tasks.formats.entities import read_entity_names
    from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges

    update = {"entity_path": str(place / "entities"), "edge_paths": (str(place / "edges"),)}
    lhs, rhs = ("lhs", "rhs") if form == "parquet" else ("0", "1")
    how = EdgeLists(form, lhs=lhs, rhs=rhs)
    import_edges(CONFIG.model_copy(update=update), [str(place / f"list.{form}")], how, memory_gb=0.5, threads=1)
    found = read_edges(place / "edges" / "edges_0_0.h5")
    names = read_entity_names(place / "entities", "n", 0)
    return {
        "count": digest(len(found)),
        "names": digest([(names[i], names[j]) for i, j in zip(found.lhs, found.rhs, strict=True)]),
    }


def of_vectors(exchange: str, make: Callable[[Path], Path]) -> Kind:
    """Return the kind of a file of vectors, which ``pbg import-embeddings`` reads."""
    return Kind(make, lambda place: read_vectors(place, exchange))


def read_vectors(place: Path, exchange: str) -> dict[str, str]:
    import json

    from pbg_tasks.publish.exchange import ReadOptions
    from pbg_tasks.tasks.exchange.import_vectors import import_embeddings

    import_embeddings(exchange, str(place / "in"), str(place / "out"), options=ReadOptions("n"))
    names = json.loads((place / "out" / "n.json").read_text(encoding="utf-8"))
    return {"count": digest(len(names)), "names": digest(names), "numbers": digest(np.load(place / "out" / "n.npy"))}


def tsv_vectors(place: Path) -> Path:
    (place / "in").mkdir()
    (place / "in" / "v.tsv").write_text(lines("\t"))
    return place / "in" / "v.tsv"


def gzip_vectors(place: Path) -> Path:
    path = tsv_vectors(place)
    path.with_name("v.tsv.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    return path.with_name("v.tsv.gz")


def wikidata(place: Path) -> Path:
    path = tsv_vectors(place)
    path.write_text(f"{ROWS}\t0\t{COLUMNS}\n{lines(chr(9))}")
    return path


def lines(between: str) -> str:
    return "".join(
        between.join([name, *map(str, row)]) + "\n" for name, row in zip(NAMES, rows().tolist(), strict=True)
    )


PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "zst": partial(pa.compress, codec="zstd", asbytes=True)}


def of_snapshot(suffix: str) -> Kind:
    """Return the kind of a snapshot's file.

    ``pbg validate`` reads it.
    """

    def make(place: Path) -> Path:
        listed = edges()
        path = place / "day" / f"part.{suffix}"
        path.parent.mkdir()
        table = pa.table(
            {"lhs": [NAMES[i] for i in listed.lhs], "rel": ["r"] * EDGES, "rhs": [NAMES[i] for i in listed.rhs]}
        )
        if suffix == "parquet":
            pq.write_table(table, path)
            return path
        text = "lhs,rel,rhs\n" + "".join(f"{row['lhs']},r,{row['rhs']}\n" for row in table.to_pylist())
        path.write_bytes(PACKERS[suffix.rpartition(".")[2]](text.encode()))
        return path

    return Kind(make, lambda place: read_snapshot(place, suffix.partition(".")[0]))


def read_snapshot(place: Path, form: str) -> dict[str, str]:
    from pbg_tasks.prepare.difference import EDGE_HASHES
    from tests.prepare.inputs import check, make_spec

    model = {key: CONFIG.model_dump(mode="json")[key] for key in ("entities", "relations", "dimension")}
    report = check(make_spec(place, form=form, model=model), place)
    return {"count": digest(report.edges), "names": digest((place / "scratch" / EDGE_HASHES).read_bytes())}


def word2vec(place: Path) -> Path:
    (place / "in").mkdir()
    (place / "in" / "v.txt").write_text(f"{ROWS} {COLUMNS}\n{lines(' ')}")
    return place / "in" / "v.txt"


def npy(place: Path) -> Path:
    import json

    (place / "in").mkdir()
    np.save(place / "in" / "n.npy", rows())
    (place / "in" / "n.json").write_text(json.dumps(NAMES))
    return place / "in" / "n.npy"


def vector_parquet(place: Path) -> Path:
    (place / "in").mkdir()
    pq.write_table(pa.table({"id": NAMES, "embedding": rows().tolist()}), place / "in" / "v.parquet")
    return place / "in" / "v.parquet"


def angel(place: Path, *file: str) -> Path:
    layout = MatrixLayout(name="n.embedding", rows=COLUMNS, end_col=ROWS, format="BinaryColumnFormat")
    write_matrix(place / "in", layout, [(np.arange(ROWS), rows())])
    return place.joinpath("in", "n.embedding", *file)


def angel_line(place: Path) -> Path:
    write_line(place / "in" / "CP_1" / "embedding", [(np.arange(ROWS), rows())])
    write_mapping(place / "in" / "mapping", enumerate(NAMES))
    return max((place / "in" / "CP_1" / "embedding").iterdir(), key=lambda path: path.stat().st_size)


KINDS: dict[str, Kind] = {
    "edges-plain": Kind(plain_edges, read_bucket),
    "edges-compressed": Kind(compressed_edges, read_bucket),
    "edges-checksummed": Kind(partial(compressed_edges, fletcher32=True), read_bucket),
    "edges-featurized": Kind(featurized_edges, read_bucket),
    "embeddings": Kind(embeddings, read_partition),
    "embeddings-compressed": Kind(compressed_embeddings, read_partition),
    "model": Kind(model, read_shared),
    "optimizer": Kind(row_optimizer, read_partition),
    "optimizer-model": Kind(model_optimizer, read_shared),
    "entity-names": of_directory("entities", "entity_names_n_0.json"),
    "counts": of_directory("entities", "entity_count_n_0.txt"),
    "relation-names": of_directory("entities", "dynamic_rel_names.json"),
    "config": of_directory("checkpoint", "config.json"),
    "version": of_directory("checkpoint", "checkpoint_version.txt"),
    "snapshot-csv-gz": of_snapshot("csv.gz"),
    "snapshot-csv-bz2": of_snapshot("csv.bz2"),
    "snapshot-csv-zst": of_snapshot("csv.zst"),
    "snapshot-parquet": of_snapshot("parquet"),
    "tsv": of_edge_list("tsv"),
    "parquet": of_edge_list("parquet"),
    "word2vec": of_vectors("word2vec", word2vec),
    "tsv-vectors": of_vectors("tsv", tsv_vectors),
    "tsv-vectors-gz": of_vectors("tsv", gzip_vectors),
    "wikidata": of_vectors("wikidata-pbg", wikidata),
    "npy": of_vectors("npy", npy),
    "parquet-vectors": of_vectors("parquet", vector_parquet),
    "angel-line": of_vectors("angel-line", angel_line),
    "angel-meta": of_vectors("angel", lambda place: angel(place, "_meta")),
    "angel-matrix": of_vectors("angel", lambda place: angel(place, "0")),
}


def original(kind: str, place: Path) -> tuple[bytes, dict[str, str]]:
    """Return a kind's valid file and its contents."""
    made = KINDS[kind].make(fresh(place))
    data = made.read_bytes()
    return data, KINDS[kind].read(place)


def damaged(kind: str, place: Path, data: bytes) -> None:
    """Write a kind's files, with other bytes in the damaged one."""
    made = KINDS[kind].make(fresh(place))
    mode = made.stat().st_mode
    made.unlink()  # the file may be a hard link to a shared one
    made.write_bytes(data)
    made.chmod(mode)
    foreign(made)


def fresh(place: Path) -> Path:
    """Empty a directory."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
