"""Random graphs of all kinds: specs, and snapshots of successive days."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from pbg_tasks.config import GraphSpec, SnapshotFile
from pbg_tasks.config.base import parse
from pbg_tasks.storage.columnar import list_files

if TYPE_CHECKING:
    from pathlib import Path

_ODD = ("é", "'", '"', "ß\t", "中", " ", "\\", "\x1f", "🙂")
"""Endings of names that text formats, SQL and orders of bytes may treat in a way of their own."""
_PARTITIONS = (1, 2, 3, 8)
_FILES = 3


class RandomGraph:
    """A graph spec drawn from a seed, and its snapshots.

    Args:
        root: local directory, made here; snapshots are in folders of it by their keys.
        edges: number of rows of a snapshot.
        seed: of all draws.
        plain: leave out what the Spark engine refuses: featurized types.
    """

    def __init__(self, root: Path, edges: int, seed: int, *, plain: bool = False) -> None:
        draw = random.Random(seed)
        self.root, self.edges, self._seed = root, edges, seed
        self.form = draw.choice(("parquet", "csv", "tsv"))
        self.weighted, self.typed, dynamic = (draw.random() < 0.5 for _ in range(3))
        names = [f"t{index}" for index in range(draw.randint(1, 3))]
        types: dict[str, dict[str, Any]] = {name: {"num_partitions": draw.choice(_PARTITIONS)} for name in names}
        count = 1 if dynamic else draw.randint(1, 5)
        ends = [(draw.choice(names), draw.choice(names)) for _ in range(count)]
        self._names = [f"r{index}" for index in range(draw.randint(1, 6) if dynamic else count)]
        self._kinds = [ends[0] if dynamic else ends[index] for index in range(len(self._names))]
        used = {name for pair in ends for name in pair}
        types = {name: schema for name, schema in types.items() if name in used}
        if not plain and draw.random() < 0.3:
            types[ends[0][0]] = {"num_partitions": 1, "featurized": True}
        self.featurized = {name for name, schema in types.items() if schema.get("featurized")}
        listed = [("all", ends[0])] if dynamic else list(zip(self._names, ends, strict=True))
        columns: dict[str, str] = {}
        columns |= {"weight": "w"} if self.weighted else {}
        columns |= {"lhs_type": "lt", "rhs_type": "rt"} if self.typed else {}
        drawn = draw.random() < 0.8
        rules: dict[str, Any] = {"vanished": {"rule": "expire", "nights": draw.choice((1, 2))}}
        rules["train"] = {"delta": draw.choice(({}, {"touching": 0.5, "sample": 0.3}, {"touching": 0.1, "sample": 1}))}
        self.document = {
            **{key: rule for key, rule in rules.items() if draw.random() < 0.5},
            "graph": "g",
            "store": str(root / "store"),
            "snapshots": {"location": f"{root}/days/{{snapshot}}", "format": self.form},
            "columns": columns,
            "split": {"valid": 0.1 * drawn, "test": 0.1 * drawn, "salt": draw.choice(("", "sé'\\"))},
            "model": {
                "entities": types,
                "relations": [{"name": name, "lhs": lhs, "rhs": rhs} for name, (lhs, rhs) in listed],
                "dynamic_relations": dynamic,
                "global_emb": False,
                "dimension": 4,
            },
            "resources": {"memory_gb": 1, "threads": 2},
        }

    def spec(self, **keys: Any) -> GraphSpec:
        """Return the spec, with other keys of ``resources``."""
        resources = {**self.document["resources"], **keys}
        return parse(GraphSpec, {**self.document, "resources": resources}, source="random graph")

    def write(self, day: int) -> str:
        """Write the snapshot of a day.

        About a tenth of its names are new, and a tenth of those before are gone.

        Returns:
            Its key.
        """
        draw = np.random.default_rng([self._seed, day])
        spread = max(2, self.edges // 4)
        key = f"2026-01-{day + 1:02}"
        folder = self.root / "days" / key
        folder.mkdir(parents=True)
        for part in range(_FILES):
            rows = self.edges // _FILES + (part < self.edges % _FILES)
            kinds = draw.integers(0, len(self._names), rows)
            numbers = (spread * draw.random((2, rows)) ** 2).astype(np.int64) + day * (spread // 10)
            lhs, rhs = (
                self._column(side, kinds, np.where(draw.random(rows) < 0.1, numbers.T[:, 0], own))
                for side, own in enumerate(numbers)
            )
            table = {"rel": pa.array(np.array(self._names)[kinds].tolist(), pa.string()), "lhs": lhs, "rhs": rhs}
            if self.weighted:
                table["w"] = pa.array(draw.random(rows).round(6), pa.float64())
            if self.typed:
                for side, name in enumerate(("lt", "rt")):
                    types = np.array([pair[side] for pair in self._kinds])
                    table[name] = pa.array(types[kinds].tolist(), pa.string())
            self._put(pa.table(table), folder / f"{part}.{self.form}")
        return key

    def files(self, key: str) -> tuple[SnapshotFile, ...]:
        """Return a snapshot's files."""
        listed = list_files(self.spec().snapshots.resolve(key))
        return tuple(SnapshotFile(uri=uri, size=size, version=version) for uri, size, version in listed)

    def _column(self, side: int, kinds: np.ndarray, numbers: np.ndarray) -> pa.Array:
        cells = [f"n{number}{_ODD[number % len(_ODD)] if number % 3 == 0 else ''}" for number in numbers.tolist()]
        bags = np.array([pair[side] in self.featurized for pair in self._kinds])[kinds]
        return pa.array(
            [
                f"f{number % 50},f{number % 7}" if bag else cell
                for bag, cell, number in zip(bags.tolist(), cells, numbers.tolist(), strict=True)
            ],
            pa.string(),
        )

    def _put(self, table: pa.Table, path: Path) -> None:
        if self.form == "parquet":
            pq.write_table(table, path, row_group_size=1 << 16)
        else:
            pc.write_csv(table, path, pc.WriteOptions(delimiter="\t" if self.form == "tsv" else ","))
