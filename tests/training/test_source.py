from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.checkpoint import checkpoint_names, open_directory
from pbg_tasks.config.graph import Shrink
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.model import ModelState
from pbg_tasks.storage import open_store
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.starting_point import StartingPoint, seeded
from tests.training.checkpoints import REAL, make_config, model_state, rows, write_checkpoint

COUNTS = {PartitionKey(entity, part): 5 + part for entity in ("user", "item") for part in (0, 1)}
START = model_state(1, REAL)


class Given:
    """Initial vectors that are easy to recognize."""

    def fill(self, _key, table):
        table.embeddings.fill_(7)

    def model(self, current):
        return model_state(7, *current.params)


@pytest.fixture
def config():
    return make_config()


@pytest.fixture
def files(tmp_path, config):
    write_checkpoint(tmp_path / "checkpoint", config, COUNTS, model=model_state(2, REAL))
    return open_directory(open_store(tmp_path / "checkpoint"), "", expect=checkpoint_names(config))


def start(config, files, tmp_path, *, counts=None, grows=False, initial=None, newcomers=None, trains=True):
    return StartingPoint(
        config,
        counts or COUNTS,
        files,
        grows=grows,
        seed=1,
        scratch=tmp_path / "scratch",
        initial=initial,
        newcomers=newcomers,
        trains=trains,
    )


def test_checkpoint_is_preferred_to_initial_vectors(config, files, tmp_path):
    point = start(config, files, tmp_path, initial=Given())
    for key, count in COUNTS.items():
        embeddings, sums = rows(*key, count)
        table = point.table(key)
        np.testing.assert_array_equal(table.embeddings.numpy(), embeddings)
        np.testing.assert_array_equal(table.row_sums.numpy(), sums)
    np.testing.assert_array_equal(point.model(START).params[REAL], [2, 2])
    np.testing.assert_array_equal(point.model(START).sums[REAL], [20, 20])
    assert not any((tmp_path / "scratch").iterdir())


def test_checkpoint_without_sums_is_warned_of_once(config, tmp_path, capsys):
    write_checkpoint(tmp_path / "bare", config, COUNTS, model=ModelState(START.params, {}), has_sums=False)
    files = open_directory(open_store(tmp_path / "bare"), "", expect=checkpoint_names(config))
    for trains in (False, True):
        point = start(config, files, tmp_path, trains=trains)
        assert not point.model(START).sums
        assert not any(point.table(key).row_sums.any() for key in COUNTS)
        assert capsys.readouterr().err.count("holds no optimizer state: its sums start at 0") == trains


def test_initial_vectors_or_random_ones_without_checkpoint(config, tmp_path):
    key = PartitionKey("user", 0)
    assert (start(config, None, tmp_path, initial=Given()).table(key).embeddings == 7).all()
    np.testing.assert_array_equal(start(config, None, tmp_path, initial=Given()).model(START).params[REAL], [7, 7])
    random = start(config, None, tmp_path)
    assert 0 < random.table(key).embeddings.abs().max() < 1e-2
    assert random.model(START) is None


def test_version_zero_provides_its_existing_files(config, tmp_path):
    """PBG looks for each file of version 0 by itself."""
    directory = tmp_path / "checkpoint"
    write_checkpoint(directory, config, {PartitionKey("item", 1): 6}, version=0)
    files = open_directory(open_store(directory), "", expect=lambda _: ["embeddings_item_1.v0.h5"])
    point = start(config, files, tmp_path, initial=Given())
    np.testing.assert_array_equal(point.table(PartitionKey("item", 1)).embeddings.numpy(), rows("item", 1, 6)[0])
    assert (point.table(PartitionKey("item", 0)).embeddings == 7).all()
    np.testing.assert_array_equal(point.model(START).params[REAL], [7, 7])


def test_warm_start_keeps_rows_and_adds_new(config, files, tmp_path):
    key = PartitionKey("user", 1)
    table = start(config, files, tmp_path, counts={key: 9}, grows=True).table(key)
    np.testing.assert_array_equal(table.embeddings.numpy()[:6], rows(*key, 6)[0])
    assert table.embeddings[6:].abs().max() < 1e-2
    assert (table.row_sums[6:] == 0).all()


@pytest.mark.parametrize(("count", "grows"), [(4, False), (9, False), (4, True)])
def test_other_number_of_rows_names_both_files(config, files, tmp_path, count, grows):
    key = PartitionKey("user", 1)
    message = rf"embeddings_user_1\.v3\.h5: holds 6 rows, but entity_count_user_1\.txt of entity_path says {count}"
    with pytest.raises(FormatError, match=message):
        start(config, files, tmp_path, counts={key: count}, grows=grows).table(key)


def test_other_dimension_is_refused(files, tmp_path):
    with pytest.raises(FormatError, match=r"user_0\.v3\.h5: has dimension 4, the config gives user dimension 8"):
        start(make_config(dimension=8), files, tmp_path).table(PartitionKey("user", 0))


def test_other_format_version_is_refused(config, files, tmp_path):
    import h5py

    with h5py.File(tmp_path / "checkpoint" / "model.v3.h5", "a") as file:
        file.attrs["format_version"] = np.int64(2)
    with pytest.raises(FormatError, match=r"model\.v3\.h5: format_version is 2"):
        start(config, files, tmp_path).model(START)


def test_shrinking_rounds_by_other_bits_each_night(config, tmp_path):
    point = StartingPoint(config, COUNTS, None, grows=True, seed=1, scratch=tmp_path, shrink=Shrink())
    tables = [Table(torch.ones(40, 50, dtype=torch.bfloat16), torch.ones(40)) for _ in range(3)]
    tables[1].embeddings[0] = 2  # another night
    for table in tables:
        point._shrunk(PartitionKey("user", 0), table, rows=40, known=40)
    first, other, again = (table.embeddings[1:] for table in tables)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def drawn(config, key, count):
    """Return a partition without any stored rows."""
    return Table.random(count, 4, config.init_scale, seeded(1, "init", *key)).embeddings.numpy()


@pytest.fixture
def draws(monkeypatch):
    """Return the number of rows of each random draw."""
    found, draw = [], Table.draw

    def watched(table, *args):
        found.append(len(table))
        draw(table, *args)

    monkeypatch.setattr(Table, "draw", watched)
    return found


@pytest.mark.parametrize("grows", [False, True])
def test_nothing_is_drawn_where_every_row_is_stored(config, files, tmp_path, draws, grows):
    for key, count in COUNTS.items():
        table = start(config, files, tmp_path, grows=grows).table(key)
        np.testing.assert_array_equal(table.embeddings.numpy(), rows(*key, count)[0])
    assert not draws


def test_new_rows_equal_those_of_whole_draw(config, files, tmp_path, draws):
    for count in (7, 9, 40, 1000):
        key = PartitionKey("user", 1)
        table = start(config, files, tmp_path, counts={key: count}, grows=True).table(key)
        np.testing.assert_array_equal(table.embeddings.numpy()[:6], rows(*key, 6)[0])
        assert draws == [count]
        np.testing.assert_array_equal(table.embeddings.numpy()[6:], drawn(config, key, count)[6:])
        draws.clear()


def test_nothing_is_drawn_beside_newcomers(config, files, tmp_path, draws):
    grown, same = PartitionKey("user", 1), PartitionKey("user", 0)
    write_checkpoint(tmp_path / "new", config, {grown: 3}, version=0)
    newcomers = open_directory(open_store(tmp_path / "new"), "", expect=lambda _: ["embeddings_user_1.v0.h5"])
    counts = {grown: 9, same: 8}
    point = start(config, files, tmp_path, counts=counts, grows=True, newcomers=newcomers)
    table = point.table(grown)
    np.testing.assert_array_equal(table.embeddings.numpy(), np.concatenate((rows(*grown, 6)[0], rows(*grown, 3)[0])))
    np.testing.assert_array_equal(table.row_sums.numpy(), np.concatenate((rows(*grown, 6)[1], rows(*grown, 3)[1])))
    assert not draws
    np.testing.assert_array_equal(point.table(same).embeddings.numpy()[5:], drawn(config, same, 8)[5:])


def test_everything_is_drawn_without_a_checkpoint(config, tmp_path):
    key = PartitionKey("user", 1)
    np.testing.assert_array_equal(start(config, None, tmp_path).table(key).embeddings.numpy(), drawn(config, key, 6))
