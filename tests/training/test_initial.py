from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.checkpoint import checkpoint_names, claim, preserve
from pbg_tasks.errors import ConfigError, FormatError, NotFoundError
from pbg_tasks.storage import open_store
from pbg_tasks.training.data.initial import open_initial
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from tests.checkpoint.samples import SPEC, iteration
from tests.training.checkpoints import REAL, make_config, model_state, rows, write_checkpoint

COUNTS = {PartitionKey(entity, part): 5 + part for entity in ("user", "item") for part in (0, 1)}
IMAG = "relations/0/operator/rhs/imag"


def no_names(key):
    raise AssertionError("a checkpoint needs no names")


def initial(init_path, scratch, **options):
    return open_initial(make_config(init_path, **options), scratch, no_names)


def filled(start, key, count):
    table = Table.from_arrays(np.zeros((count, 4), np.float32), None)
    start.fill(key, table)
    return table


def check_vectors(start):
    for key, count in COUNTS.items():
        table, (embeddings, sums) = filled(start, key, count), rows(*key, count)
        np.testing.assert_array_equal(table.embeddings.numpy(), embeddings)
        np.testing.assert_array_equal(table.row_sums.numpy(), sums)


def test_start_without_init_path_is_random(tmp_path):
    assert initial(None, tmp_path) is None


def test_pbg_checkpoint_provides_vectors_parameters_and_sums(tmp_path):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL, IMAG))
    start = initial(tmp_path / "pbg", tmp_path)
    check_vectors(start)
    state = start.model(model_state(1, REAL, IMAG))
    np.testing.assert_array_equal(state.params[IMAG], [2, 2])
    np.testing.assert_array_equal(state.sums[IMAG], [20, 20])
    assert not any((tmp_path / "init").iterdir())


def test_parameters_are_loaded_where_they_exist(tmp_path, capsys):
    """PBG loads with strict=False and reports nothing."""
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    state = initial(tmp_path / "pbg", tmp_path).model(model_state(1, IMAG))
    np.testing.assert_array_equal(state.params[IMAG], [1, 1])
    assert set(state.params) == {IMAG}
    said = capsys.readouterr().err
    assert f"parameters {IMAG} are not there" in said
    assert f"parameters {REAL} are not of this model" in said


def test_parameter_of_other_shape_is_refused(tmp_path):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL, shape=(3,)))
    with pytest.raises(FormatError, match=rf"model/{REAL} has shape \(3,\), the config needs \(2,\)"):
        initial(tmp_path / "pbg", tmp_path).model(model_state(1, REAL))


def test_own_checkpoint_and_its_snapshots_are_read(tmp_path):
    config = make_config()
    write_checkpoint(tmp_path / "files", config, COUNTS, version=1, model=model_state(2, REAL))
    store = open_store(tmp_path / "ours")
    with claim(store, "", SPEC, adopt=checkpoint_names(config)) as writer:
        objects = {name: writer.put(name, tmp_path / "files" / name) for name in checkpoint_names(config)(1)}
        manifest = writer.commit(objects, iteration=iteration(1), edges=1)
    preserve(store, "", manifest, "epoch_1", epochs=1)
    for place in ("ours", "ours/epoch_1"):
        check_vectors(initial(tmp_path / place, tmp_path))


def test_snapshot_of_pbg_is_read(tmp_path):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    snapshot = tmp_path / "pbg" / "epoch_3"
    snapshot.mkdir()
    for path in (tmp_path / "pbg").glob("*.h5"):
        (snapshot / path.name).symlink_to(path)
    (snapshot / "checkpoint_version.txt").write_text("3\n")
    check_vectors(initial(snapshot, tmp_path))


@pytest.mark.s3
def test_checkpoint_in_s3_is_read(tmp_path, s3_bucket):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    store = open_store(f"{s3_bucket}/pbg")
    for path in (tmp_path / "pbg").iterdir():
        store.put(path.name, path)
    check_vectors(initial(store.url, tmp_path))


def test_type_missing_in_checkpoint_starts_at_random(tmp_path, capsys):
    old = make_config(types=("user",))
    counts = {key: count for key, count in COUNTS.items() if key.entity == "user"}
    write_checkpoint(tmp_path / "pbg", old, counts, model=model_state(2, REAL))
    start = initial(tmp_path / "pbg", tmp_path)
    assert (filled(start, PartitionKey("item", 0), 5).embeddings == 0).all()
    assert "holds no item: these start at random" in capsys.readouterr().err


def test_other_rows_are_refused_with_remedy(tmp_path):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    start = initial(tmp_path / "pbg", tmp_path)
    with pytest.raises(
        FormatError, match=r"holds 5 rows, but entity_count_user_0\.txt .* says 8; .* arrays with names"
    ):
        filled(start, PartitionKey("user", 0), 8)


@pytest.mark.parametrize("partitions", [1, 3])
def test_other_partitions_are_refused(tmp_path, partitions):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    with pytest.raises(FormatError, match=rf"holds 2 partitions of user, the config has {partitions}"):
        initial(tmp_path / "pbg", tmp_path, partitions=partitions)


def test_missing_partition_is_named(tmp_path):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    (tmp_path / "pbg" / "embeddings_item_0.v3.h5").unlink()
    with pytest.raises(FormatError, match=r"version 3 lacks embeddings_item_0\.v3\.h5"):
        initial(tmp_path / "pbg", tmp_path)


def test_checkpoint_without_any_type_is_refused(tmp_path):
    write_checkpoint(tmp_path / "pbg", make_config(), COUNTS, model=model_state(2, REAL))
    with pytest.raises(FormatError, match="none of the types author, paper"):
        initial(tmp_path / "pbg", tmp_path, types=("author", "paper"))


def test_checkpoint_without_trained_version_is_refused(tmp_path):
    (tmp_path / "checkpoint_version.txt").write_text("0\n")
    with pytest.raises(NotFoundError, match="holds no trained version"):
        initial(tmp_path, tmp_path)


def test_empty_folder_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"neither a checkpoint nor an array.*\(user, item\)"):
        initial(tmp_path / "empty", tmp_path)
