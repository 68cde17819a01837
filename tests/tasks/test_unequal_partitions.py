"""Graphs whose two sides have any numbers of partitions.

They are imported, trained, evaluated and exported.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import count_edges, edge_file_name
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.training.train import train_directory

TSV = EdgeLists("tsv", "0", "2", "1")
EXAMPLES = 15  # each example runs all four commands: nearly a second


@dataclass(frozen=True, slots=True)
class Graph:
    """Entity types with partitions, relations with types, and edges.

    Edges are by relation.
    """

    partitions: dict[str, int]
    relations: tuple[tuple[str, str], ...]
    dynamic: bool
    edges: tuple[tuple[int, int, int], ...]

    def config(self, root):
        ends = self.relations[:1] if self.dynamic else self.relations
        return ConfigSchema(
            entities={name: {"num_partitions": count} for name, count in self.partitions.items()},
            relations=[
                {"name": f"r{index}", "lhs": lhs, "rhs": rhs, "operator": "diagonal"}
                for index, (lhs, rhs) in enumerate(ends)
            ],
            dynamic_relations=self.dynamic,
            global_emb=not self.dynamic,
            dimension=4,
            num_epochs=1,
            workers=1,
            eval_fraction=0.0,
            batch_size=10,
            num_batch_negs=5,
            num_uniform_negs=5,
            entity_path=str(root / "entities"),
            edge_paths=[str(root / "edges")],
            checkpoint_path=str(root / "model"),
        )

    def ends(self, edge):
        """Return an edge's two entities, each by its type and name."""
        relation, lhs, rhs = edge
        left, right = self.relations[0 if self.dynamic else relation]
        return (left, f"{left}{lhs}"), (right, f"{right}{rhs}")


@st.composite
def graphs(draw):
    """Draw a graph that PBG allows.

    The partitioned types of one side have one number of partitions.
    """
    left, right = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    partitions = {"one": 1, "left": left, "right": right, "idle": draw(st.integers(1, 4))}
    lefts, rights = ["one", "left"], ["one", "right"]
    if left == right:
        partitions["both"] = left
        lefts.append("both")
        rights.append("both")
    relations = tuple(
        draw(st.lists(st.tuples(st.sampled_from(lefts), st.sampled_from(rights)), min_size=1, max_size=4))
    )
    ends = st.integers(0, 15)
    edge = st.tuples(st.integers(0, len(relations) - 1), ends, ends)
    edges = tuple(draw(st.lists(edge, min_size=1, max_size=60, unique=True)))
    named = {name: count for name, count in partitions.items() if name == "idle" or name in sum(relations, ())}
    return Graph(named, relations, draw(st.booleans()), edges)


BIPARTITE = Graph({"user": 2, "item": 3}, (("user", "item"),), dynamic=False, edges=((0, 0, 1), (0, 2, 3), (0, 1, 0)))


@settings(max_examples=EXAMPLES)
@example(BIPARTITE)
@given(graphs())
def test_unequal_partitions_pass_through_every_command(graph):
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        config, edges = graph.config(root), len(graph.edges)
        lines = [f"{graph.ends(edge)[0][1]}\tr{edge[0]}\t{graph.ends(edge)[1][1]}\n" for edge in graph.edges]
        (root / "edges.tsv").write_text("".join(lines))
        assert import_edges(config, [str(root / "edges.tsv")], TSV, threads=1)["edges"] == edges
        grid = [(lhs, rhs) for lhs in range(config.partitions("lhs")) for rhs in range(config.partitions("rhs"))]
        assert sum(count_edges(root / "edges" / edge_file_name(*bucket)) for bucket in grid) == edges

        assert train_directory(config)["edges_trained"] == edges
        assert evaluate_directory(config, filtered=True, threads=1)["raw"]["count"] == 2 * edges
        assert evaluate_directory(config, negatives="config", threads=1)["edges"] == edges

        entities, relations = root / "entities.tsv", root / "relations.tsv"
        export_directory(config, entities_output=str(entities), relation_types_output=str(relations))
        exported = [line.split("\t")[0] for line in entities.read_text().splitlines()]
        names = {name for edge in graph.edges for _, name in graph.ends(edge)}
        assert sorted(exported) == sorted(names)
        assert json.loads((root / "entities" / "dynamic_rel_names.json").read_text())
