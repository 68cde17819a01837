"""Vectors that are drawn to those of the night before.

By the right amount, at the right time, in one process and in gangs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pbg_tasks.checkpoint import claim
from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.storage import LocalStore
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.data.partitions import PartitionKey, partition_keys
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import rounding
from pbg_tasks.training.engine.anchor import Anchor
from pbg_tasks.training.starting_point import StartingPoint
from tests.training.buckets import PARTITIONS, ROWS, SPEC, make_config, objects, train_alone
from tests.training.checkpoints import rows
from tests.training.ranks import gangs
from tests.training.releases import KNOWN, release

LAST = IterationInfo(1, 0, 2, 1, "edges", 2, 1)
RIGID = 1e12  # a weight whose share rounds to all of it


def train(config, buckets, root, *, weight=0.0, engine=None):
    """Train in one process, and return the committed objects."""
    root.mkdir(parents=True, exist_ok=True)
    before, store = release(root / "release", config), LocalStore(root / "store")
    with claim(store, "", SPEC) as writer:
        files = writer.files if writer.files.names else None
        train_alone(
            config,
            writer,
            FiledEdges(buckets),
            StartingPoint(
                config,
                dict.fromkeys(partition_keys(config), ROWS),
                files or before,
                grows=files is None,
                seed=7,
                scratch=root,
            ),
            root,
            engine=engine,
            anchor=Anchor(before, weight, root) if weight else None,
        )
    return store


def vectors(store, config, version):
    return {
        key: read_embeddings(Path(store.url) / embeddings_file_name(*key, version)) for key in partition_keys(config)
    }


def test_anchor_takes_proximal_step_for_known_rows(tmp_path):
    config = make_config()
    anchor, key = Anchor(release(tmp_path / "release", config), 3.0, tmp_path), PartitionKey("n", 2)
    known = torch.from_numpy(rows(*key, KNOWN)[0])
    start = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    start[5] = known[5]
    table = Table(start.clone(), torch.ones(ROWS))
    anchor.draw(key, table, LAST)
    torch.testing.assert_close(table.embeddings[:KNOWN], (start[:KNOWN] + 3 * known) / 4)
    assert torch.equal(table.embeddings[5], known[5])
    assert torch.equal(table.embeddings[KNOWN:], start[KNOWN:])
    assert torch.equal(table.row_sums, torch.ones(ROWS))


def test_random_bits_are_made_in_parts(tmp_path, monkeypatch):
    """Those of a block at once take 150 MB."""
    config, scrambled = make_config(embedding_precision="bf16"), rounding.scrambled
    anchor, key = Anchor(release(tmp_path / "release", config), 3.0, tmp_path), PartitionKey("n", 2)
    made = []

    def noted(seed_B, columns):
        made.append(len(seed_B))
        return scrambled(seed_B, columns)

    def drawn(at_once):
        made.clear()
        monkeypatch.setattr(rounding, "_AT_ONCE", at_once)
        table = Table(torch.full((ROWS, 4), 0.5).bfloat16(), torch.ones(ROWS))
        anchor.draw(key, table, LAST)
        return table.embeddings

    monkeypatch.setattr(rounding, "scrambled", noted)
    whole = drawn(1 << 18)
    assert made == [KNOWN]
    assert torch.equal(drawn(4 * 3), whole)
    assert sum(made) == KNOWN
    assert max(made) == 3


@pytest.mark.parametrize(("path", "chunk"), [(0, 1), (1, 0)])
def test_nothing_is_drawn_before_an_epoch_ends(tmp_path, path, chunk):
    config = make_config()
    anchor = Anchor(release(tmp_path / "release", config), 3.0, tmp_path)
    table = Table(torch.zeros(ROWS, 4), torch.zeros(ROWS))
    anchor.draw(PartitionKey("n", 0), table, IterationInfo(1, 0, 2, path, "edges", 2, chunk))
    assert not table.embeddings.any()


@pytest.mark.parametrize("buffer", [2, 3, None])
def test_epoch_is_trained_freely_then_drawn_once(tmp_path, buckets, buffer):
    config = make_config(num_epochs=1, partition_buffer=buffer, eval_fraction=0.0)
    free = vectors(train(config, buckets, tmp_path / "free"), config, 1)
    drawn = vectors(train(config, buckets, tmp_path / "drawn", weight=0.5), config, 1)
    for key, (embeddings, sums) in free.items():
        known = torch.from_numpy(rows(*key, KNOWN)[0])
        expected = torch.from_numpy(embeddings)
        expected[:KNOWN] = torch.lerp(expected[:KNOWN], known, 0.5 / 1.5)
        np.testing.assert_array_equal(drawn[key][0], expected.numpy())
        np.testing.assert_array_equal(drawn[key][1], sums)


def test_resumed_training_gives_the_same_bits(tmp_path, buckets):
    whole, first = make_config(num_epochs=2), make_config(num_epochs=1)
    direct = train(whole, buckets, tmp_path / "direct", weight=0.5)
    train(first, buckets, tmp_path / "resumed", weight=0.5)
    resumed = train(whole, buckets, tmp_path / "resumed", weight=0.5)
    assert objects(resumed) == objects(direct)


@pytest.mark.parametrize("servers", [-1, 0])
@pytest.mark.parametrize(("partitions", "world"), [(PARTITIONS, 2), (1, 1)])
def test_gang_draws_all_partitions_and_shared_rows(tmp_path, buckets, partitions, world, servers):
    config = make_config(
        num_epochs=2, entities={"n": {"num_partitions": partitions}}, num_partition_servers=servers, eval_fraction=0.0
    )
    before, store = release(tmp_path / "release", config), LocalStore(tmp_path / "store")
    gangs.train(
        config, buckets, store, tmp_path / "scratch", world=world, anchor=lambda scratch: Anchor(before, RIGID, scratch)
    )
    for key, (embeddings, sums) in vectors(store, config, 2).items():
        np.testing.assert_array_equal(embeddings[:KNOWN], rows(*key, KNOWN)[0])
        assert sums[:KNOWN].any(), "nothing was trained"
