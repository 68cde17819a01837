from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.errors import FormatError, InputError
from pbg_tasks.training.data import named_arrays
from pbg_tasks.training.data.initial import open_given, open_initial
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from tests.training.checkpoints import make_config, model_state

NAMES = {
    PartitionKey("user", 0): ["ann", "bob", "cid"],
    PartitionKey("user", 1): ["dan"],
    PartitionKey("item", 0): ["ann"],
    PartitionKey("item", 1): [],
}
VECTORS = {"dan": 4.0, "nobody": 9.0, "cid": 3.0, "ann": 1.0}


def vectors(dtype=np.float32):
    return np.array([np.full(4, value) for value in VECTORS.values()], dtype)


def write_npy(directory, array=None, names=None):
    directory.mkdir(exist_ok=True)
    np.save(directory / "user.npy", vectors() if array is None else array)
    (directory / "user.json").write_text(json.dumps(list(VECTORS) if names is None else names))


def write_parquet(directory, embedding=None, names=None, **options):
    directory.mkdir(exist_ok=True)
    embedding = pa.array(vectors().tolist(), pa.list_(pa.float32(), 4)) if embedding is None else embedding
    table = pa.table({"name": list(VECTORS) if names is None else names, "embedding": embedding})
    pq.write_table(table, directory / "user.parquet", **options)


def opened(directory, scratch):
    return open_initial(make_config(directory), scratch, NAMES.__getitem__)


def filled(start, key):
    table = Table.from_arrays(np.zeros((len(NAMES[key]), 4), np.float32), None)
    start.fill(key, table)
    return dict(zip(NAMES[key], table.embeddings[:, 0].tolist(), strict=True))


def check(directory, scratch):
    start = opened(directory, scratch)
    assert filled(start, PartitionKey("user", 0)) == {"ann": 1, "bob": 0, "cid": 3}
    assert filled(start, PartitionKey("user", 1)) == {"dan": 4}
    return start


@pytest.mark.parametrize("array", [vectors(), vectors(np.float64), vectors(np.float16), np.asfortranarray(vectors())])
def test_npy_arrays_and_names_are_read(tmp_path, array):
    write_npy(tmp_path / "given", array)
    start = check(tmp_path / "given", tmp_path)
    current = model_state(1, "relations/0/operator/rhs/real")
    assert start.model(current) is current


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32(), 4),
        pa.list_(pa.float64()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float16()),
    ],
    ids=str,
)
def test_parquet_is_read(tmp_path, kind):
    values = [list(row) for row in vectors(np.float16 if kind.value_type == pa.float16() else np.float64)]
    write_parquet(tmp_path / "given", pa.array(values, kind))
    check(tmp_path / "given", tmp_path)


def test_parquet_of_many_batches_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(named_arrays, "_BLOCK_VALUES", 4)
    write_parquet(tmp_path / "given", row_group_size=2, names=pa.array(list(VECTORS)).dictionary_encode())
    check(tmp_path / "given", tmp_path)


def test_number_of_matches_is_reported(tmp_path, capsys):
    write_npy(tmp_path / "given")
    check(tmp_path / "given", tmp_path)
    said = capsys.readouterr().err
    assert "holds no array of item: these start at random" in said
    assert "user 0: 2 of 3 entities start from" in said
    assert "user 1: 1 of 1 entities start from" in said
    assert "user.npy: 1 of 4 rows are not used" in said


def test_array_of_no_rows_is_read(tmp_path):
    write_npy(tmp_path / "given", np.empty((0, 4), np.float32), [])
    start = opened(tmp_path / "given", tmp_path)
    assert filled(start, PartitionKey("user", 1)) == {"dan": 0}
    write_parquet(tmp_path / "other", pa.array([], pa.list_(pa.float32(), 4)), pa.array([], pa.string()))
    assert filled(opened(tmp_path / "other", tmp_path), PartitionKey("user", 1)) == {"dan": 0}


@pytest.mark.s3
def test_arrays_in_s3_are_read(tmp_path, s3_bucket):
    from pbg_tasks.storage import open_store

    write_npy(tmp_path / "given")
    store = open_store(f"{s3_bucket}/given")
    for path in (tmp_path / "given").iterdir():
        store.put(path.name, path)
    check(store.url, tmp_path)


def broken(value, dtype=np.float32):
    array = vectors(dtype)
    array[2, 1] = value
    return array


@pytest.mark.parametrize("array", [broken(np.nan), broken(-np.inf), broken(1e300, np.float64)])
def test_infinite_vectors_are_refused_by_name(tmp_path, array):
    write_npy(tmp_path / "given", array)
    start = opened(tmp_path / "given", tmp_path)
    with pytest.raises(FormatError, match=r"user\.npy: the vector of 'cid' is not finite"):
        filled(start, PartitionKey("user", 0))


def test_unused_row_may_contain_anything(tmp_path):
    array = vectors()
    array[1] = np.nan
    write_npy(tmp_path / "given", array)
    check(tmp_path / "given", tmp_path)


@pytest.mark.parametrize(
    ("array", "names", "message"),
    [
        (vectors()[:, :3], None, r"user\.npy: holds float32 of shape \(4, 3\)"),
        (vectors()[0], None, r"shape \(4,\)"),
        (vectors().astype(np.int64), None, "holds int64"),
        (vectors(), ["dan", "x", "dan", "y"], "'dan' stands in more than one row"),
        (vectors(), ["dan"], "has 4 rows and 1 names"),
        (vectors(), ["a", "b", "c", 4], r"user\.json: not a JSON list of strings"),
        (vectors(), {"a": 1}, r"user\.json: not a JSON list of strings"),
        (vectors(), ["a", "b", "c", "\ud800"], r"user\.json: holds a name that is no Unicode text"),
        (np.array([{}]), None, r"not a readable \.npy array"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, array, names, message):
    write_npy(tmp_path / "given", array, names)
    with pytest.raises(FormatError, match=message):
        opened(tmp_path / "given", tmp_path)


def test_damaged_arrays_are_refused(tmp_path):
    write_npy(tmp_path / "given")
    path = tmp_path / "given" / "user.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FormatError, match=r"user\.npy: not a readable"):
        opened(tmp_path / "given", tmp_path)
    (tmp_path / "given" / "user.json").write_text("[")
    with pytest.raises(FormatError, match=r"user\.json: not readable JSON"):
        opened(tmp_path / "given", tmp_path)
    (tmp_path / "given" / "user.json").unlink()
    with pytest.raises(FormatError, match=r"user\.json: missing"):
        opened(tmp_path / "given", tmp_path)


FIXED = pa.list_(pa.float32(), 4)


@pytest.mark.parametrize(
    ("embedding", "names", "message"),
    [
        (([[1.0] * 4, [1.0] * 3], pa.list_(pa.float32())), ["a", "b"], "'b' has 3 numbers, the config needs 4"),
        (([[1.0] * 5], pa.list_(pa.float32(), 5)), ["a"], "'a' has 5 numbers"),
        (([[1.0] * 4, None], FIXED), ["a", "b"], "'b' has 0 numbers"),
        (([[1.0] * 4, [1.0] * 4], FIXED), ["a", "a"], "'a' stands in more than one row"),
        (([[1.0] * 4, [1.0] * 4], FIXED), ["a", None], "row 1 has no name"),
        (([[1] * 4], pa.list_(pa.int64())), ["a"], r"has name \(string\), embedding \(list"),
        (([1.0],), ["a"], r"embedding \(double\)"),
    ],
)
def test_parquet_that_does_not_fit_is_refused(tmp_path, embedding, names, message):
    write_parquet(tmp_path / "given", pa.array(*embedding), names)
    with pytest.raises(FormatError, match=message):
        opened(tmp_path / "given", tmp_path)


def test_null_inside_vector_is_not_finite(tmp_path):
    write_parquet(tmp_path / "given", pa.array([[1.0, None, 1.0, 1.0]], FIXED), ["dan"])
    start = opened(tmp_path / "given", tmp_path)
    with pytest.raises(FormatError, match=r"user\.parquet: the vector of 'dan' is not finite"):
        filled(start, PartitionKey("user", 1))


def test_damaged_parquet_or_both_forms_are_refused(tmp_path):
    write_parquet(tmp_path / "given")
    (tmp_path / "given" / "user.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(FormatError, match=r"user\.parquet: not a readable Parquet file"):
        opened(tmp_path / "given", tmp_path)
    write_npy(tmp_path / "given")
    with pytest.raises(FormatError, match=r"holds both user\.npy and user\.parquet"):
        opened(tmp_path / "given", tmp_path)


@pytest.mark.parametrize("names", [[1.0, 2, 3, 4], [True, False, True, False], [b"a", b"b", b"c", b"d"]])
def test_parquet_names_of_several_texts_are_refused(tmp_path, names):
    write_parquet(tmp_path / "given", names=names)
    with pytest.raises(FormatError, match=r"needs a column 'name' of strings or whole numbers .* has name \("):
        opened(tmp_path / "given", tmp_path)


def test_parquet_with_repeated_columns_is_refused(tmp_path):
    write_parquet(tmp_path / "given")
    table = pq.read_table(tmp_path / "given" / "user.parquet")
    pq.write_table(table.append_column("name", table["name"]), tmp_path / "given" / "user.parquet")
    with pytest.raises(FormatError, match=r"user\.parquet: not a readable Parquet file .*exists 2 times"):
        opened(tmp_path / "given", tmp_path)


def test_parquet_of_numbers_keeps_their_digits(tmp_path):
    names = pa.array([2**64 - 1, 2**53 + 1, 7, 8], pa.uint64())
    write_parquet(tmp_path / "given", names=names)
    assert opened(tmp_path / "given", tmp_path)._arrays["user"].names.to_pylist() == [*map(str, names.to_pylist())]


def test_unfinished_import_is_refused(tmp_path):
    """A killed import may have some types only, or old names."""
    write_npy(tmp_path / "init")
    (tmp_path / "init" / "_unfinished.json").write_text("{}")
    with pytest.raises(InputError, match=r"init_path: .*/init is being written, or was cut off and has to be written"):
        opened(tmp_path / "init", tmp_path)
    (tmp_path / "init" / "_manifest.json").write_text('{"objects": {}}')
    check(tmp_path / "init", tmp_path)


@pytest.mark.parametrize("name", ["user.npy", "user.json"])
def test_file_of_another_export_is_refused(tmp_path, name):
    """A copy that was cut off has files of both."""
    given = tmp_path / "given"
    write_npy(given)
    objects = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}
        for path in given.iterdir()
    }
    (given / "_manifest.json").write_text(json.dumps({"format": 1, "exchange": "npy", "objects": objects}))
    check(given, tmp_path)
    write_npy(tmp_path / "other", vectors() + 1, [*VECTORS][::-1])
    shutil.copy(tmp_path / "other" / name, given / name)
    with pytest.raises(FormatError, match=rf"given/{name}: not the bytes that _manifest.json beside it recorded"):
        opened(given, tmp_path)


def test_only_frozen_types_have_given_vectors(tmp_path):
    """A path may have arrays of the others alone."""
    write_npy(tmp_path / "given")
    config = make_config(tmp_path / "given")
    frozen = config.entities["item"].model_copy(update={"trainable": False})
    config = config.model_copy(update={"entities": config.entities | {"item": frozen}})
    assert open_given(config, tmp_path, NAMES.__getitem__) is None
