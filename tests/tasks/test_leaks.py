"""Edges ranked tonight that were never trained before.

Neither tonight, nor in a night whose vectors tonight's come from.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pbg_tasks.errors import QualityGateError
from pbg_tasks.formats.edges import read_edges
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.release.repartition import repartition
from tests.tasks.conftest import ring


def spec(place, partitions=2, **sections):
    model = {"num_epochs": 1, "entities": {"n": {"num_partitions": partitions}}}
    place.write_spec(model, split={"valid": 0.05, "test": 0.15}, **sections)


def pairs(run, *splits):
    """Return the unordered pairs of names in some splits."""
    run = Path(run)
    partitions = len(list((run / "entities").glob("entity_count_n_*.txt")))
    names = [read_entity_names(run / "entities", "n", part) for part in range(partitions)]
    found = set()
    for split in splits:
        for path in (run / "edges" / split).glob("*.h5"):
            i, j = (int(part) for part in path.stem.split("_")[1:])
            edges = read_edges(path)
            found |= {frozenset((names[i][a], names[j][b])) for a, b in zip(edges.lhs, edges.rhs, strict=True)}
    return found


def nightly(place, day, rows):
    place.snapshot(day, rows)
    return run_chain(place.spec, day)["run"]


def both_ways(rows):
    return rows + [(rhs, f"inverse_{rel}", lhs) for lhs, rel, rhs in rows]


def adopted(place, rows):
    """Train a checkpoint elsewhere, and begin the chain with it."""
    spec(place, store=str(place.root / "elsewhere"))
    place.snapshot("d0", rows)
    url = plan(place.spec, "d0", publish=False)["run"]
    for task in ("validate", "partition", "bucket", "train"):
        run_task(task, url)
    (place.root / "edges" / "d0.tsv").unlink()
    spec(place)
    adopt(f"{url}/checkpoint", f"{url}/entities", place.spec)


@pytest.mark.parametrize(
    "migration", [pytest.param("none", marks=pytest.mark.rotated(3)), "adopt and repartition", "compact"]
)
def test_no_ranked_pair_was_trained_in_chain(place, migration):
    rows = both_ways(ring(60))
    if migration == "adopt and repartition":
        adopted(place, rows)
    vanished = {"vanished": {"nights": 1}} if migration == "compact" else {}
    spec(place, **vanished)
    runs = [nightly(place, "d1", rows + ring(8, first=200))]
    # d2 lacks some edges and all of e200 to e207: candidates of d1 become the last edge of an end, and are trained
    runs.append(nightly(place, "d2", rows[::3]))
    assert pairs(runs[0], "valid", "test") & pairs(runs[1], "train")
    if migration == "compact":
        assert repartition(place.spec, compact=True)["dropped"]["n"] >= 8
    elif migration != "none":
        spec(place, partitions=3)
        assert repartition(place.spec)["moved"]
    runs.append(nightly(place, "d3", rows + ring(8, first=200)))
    trained = set()
    for run in runs:
        trained |= pairs(run, "train")
        held_out = pairs(run, "valid", "test")
        assert held_out
        assert not held_out & trained
    # pairs that d2 returned to training stay there, though by their hashes they would be held out again
    assert pairs(runs[0], "valid", "test") & pairs(runs[1], "train") <= pairs(runs[2], "train")


def test_pair_keeps_its_split_with_changing_edges(place):
    """Add an edge of a held-out pair later; it is not trained.

    It is of another relation or the other way round.
    """
    spec(place)
    rows = ring(60)
    first = nightly(place, "d1", rows)
    held_out = pairs(first, "valid", "test")
    others = [(rhs, "liked_by", lhs) for lhs, _, rhs in rows if frozenset((lhs, rhs)) in held_out]
    kept = [row for row in rows if frozenset((row[0], row[2])) not in held_out]
    second = nightly(place, "d2", kept + others)  # only the inverse is left of each held-out pair
    third = nightly(place, "d3", rows + others + [(lhs, "again", rhs) for rhs, _, lhs in others])
    for run in (second, third):
        assert held_out <= pairs(run, "valid", "test")
        assert not held_out & pairs(run, "train")


def test_night_without_held_out_edges_ends_early(place):
    """Every end except the hub has one edge.

    So each pair that is drawn goes back to training.
    """
    place.snapshot("d1", [(f"e{i}", "likes", "hub") for i in range(200)])
    with pytest.raises(QualityGateError, match=r"no test edges could be held out.*: \d+ pairs of entities were drawn"):
        run_chain(place.spec, "d1")
    (run,) = (place.store / "runs").iterdir()
    assert not (run / "results" / "bucket.json").exists()
    assert not (run / "results" / "train.json").exists()
    assert (run / "refused.json").exists()
    # later nights continue without it, and one with too few edges to draw any names the remedy
    place.snapshot("d2", [("a", "likes", "b"), ("b", "likes", "c"), ("c", "likes", "a")])
    place.write_spec(split={"valid": 0.0, "test": 1e-9})
    with pytest.raises(QualityGateError, match=r"nothing to evaluate on: raise split\.test"):
        run_chain(place.spec, "d2")
