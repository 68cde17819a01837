from __future__ import annotations

import random
import signal
from contextlib import contextmanager

import pytest
import yaml

from pbg_tasks.config.yaml_loader import Loader

MODEL = {
    "entities": {"n": {"num_partitions": 2}},
    "relations": [{"name": "all", "lhs": "n", "rhs": "n", "operator": "translation"}],
    "dynamic_relations": True,
    "global_emb": False,
    "dimension": 8,
    "comparator": "l2",
    "loss_fn": "softmax",
    "lr": 0.1,
    "num_epochs": 3,
    "batch_size": 20,
    "num_batch_negs": 10,
    "num_uniform_negs": 10,
}


def ring(count, *, first=0, seed=0):
    """Return edges of a ring with chords."""
    rng = random.Random(seed)
    rows = []
    for i in range(first, first + count):
        for step, relation in ((1, "next"), (2, "skip"), (5, "far")):
            rows.append((f"e{i}", relation, f"e{first + (i - first + step) % count}"))
    rng.shuffle(rows)
    return rows


def communities(nodes=1000, size=40, count=7000, relation="r"):
    """Return random edges within groups of nodes."""
    rng, found = random.Random(0), set()
    while len(found) < count:
        node = rng.randrange(nodes)
        found.add((f"e{node}", relation, f"e{node // size * size + rng.randrange(size)}"))
    return sorted(found)


SMALL_GRAPH = {"min_common_edges": 1, "min_over_popularity": {}, "min_over_start": {}, "max_trend_drop": {}}
"""Gates that a graph of some dozen edges fails by chance."""


class _Quoting(yaml.SafeDumper):
    """A writer that quotes ``1e5``, which PyYAML takes for a text."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


class Workplace:
    """A directory with snapshots, a store and a spec."""

    def __init__(self, root):
        self.root = root
        self.spec = root / "graph.yaml"
        self.store = root / "store"
        self.write_spec()

    def write_spec(self, model=None, gates=None, **sections):
        gates = {"max_mrr_drop": 1.0} if gates is None else gates
        data = {"max_removed_edges": {}} | gates.get("data", {})  # the edges of two nights may be others
        self.spec.write_text(
            yaml.dump(
                {
                    "graph": "toy",
                    "store": str(self.store),
                    "snapshots": {"location": f"{self.root}/edges/{{snapshot}}.tsv", "format": "tsv"},
                    "model": {**MODEL, **(model or {})},
                    "split": {"valid": 0.02, "test": 0.1},
                    "resources": {"memory_gb": 1, "threads": 1},
                    "gates": SMALL_GRAPH | gates | {"data": data},
                    **sections,
                },
                Dumper=_Quoting,
            )
        )

    def snapshot(self, key, rows, header="lhs\trel\trhs"):
        path = self.root / "edges" / f"{key}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n")
        return path

    def channel(self, name="production"):
        from pbg_tasks.publish import Channel
        from pbg_tasks.storage import open_store

        return Channel(open_store(str(self.store)), name)


@contextmanager
def workplace(root):
    """Yield a workplace for a fixture of a module or session.

    Its scratch is inside it, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBG_SCRATCH", str(root / "scratch"))
        yield Workplace(root)


@pytest.fixture
def interruptible():
    """Handler of SIGINT, which shells ignore in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
