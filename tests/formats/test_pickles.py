"""Optimizer blobs of other writers: plain ones are read, programs never run."""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.pickles import load_state
from tests.formats.pickles import ROWS, archive, around, read_sums


@pytest.fixture
def path(tmp_path):
    return tmp_path / "embeddings_user_0.v1.h5"


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def row_state(sums, **extra):
    return {"state": {0: {"sum": sums, **extra}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


SUMS = torch.arange(float(ROWS))


@pytest.mark.parametrize(
    "state",
    [
        row_state(SUMS),
        row_state(SUMS, step=0),
        row_state(SUMS, step=torch.tensor(3.0)),
        row_state(SUMS.double()),
        row_state(torch.stack([SUMS, SUMS], 1)[:, 0]),
        collections.OrderedDict(row_state(SUMS)),
    ],
    ids=["head", "1.0.0", "tensor step", "double", "strided", "ordered"],
)
def test_plain_states_are_read(path, state):
    np.testing.assert_array_equal(read_sums(path, saved(state)), np.arange(ROWS, dtype=np.float32))


@pytest.mark.parametrize("state", [{}, {"state": {}, "param_groups": []}])
def test_states_without_sums_are_none(path, state):
    assert read_sums(path, saved(state)) is None


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ([1, 2], "not an optimizer's state dict"),
        ({"state": [1]}, "not an optimizer's state dict"),
        ({"state": {0: 1}}, "no tensor 'sum'"),
        (row_state(1.0), "no tensor 'sum'"),
        (row_state(torch.arange(ROWS)), "no tensor 'sum'"),
        (row_state(SUMS[:3]), r"sums of shape \(3,\), expected \(5,\)"),
        (row_state(SUMS.reshape(ROWS, 1)), r"sums of shape \(5, 1\)"),
        (row_state(-SUMS), "negative or not finite"),
        (row_state(SUMS / 0), "negative or not finite"),
        ({"state": {1: {"sum": SUMS}}}, "holds 1 parameters' state"),
        (row_state(SUMS.to_sparse()), "pickle names torch._utils _rebuild_sparse_tensor"),
        (row_state(torch.nn.Parameter(SUMS)), "pickle names torch._utils _rebuild_parameter"),
        (row_state(torch.zeros(1_000_000).expand(2, -1)[0, :ROWS]), "more than the .* that the file's parameters can"),
    ],
)
def test_states_that_do_not_fit_are_refused(path, state, reason):
    with pytest.raises(FormatError, match=rf"v1\.h5: optimizer/state_dict.*{reason}"):
        read_sums(path, saved(state))


def test_a_tensor_larger_than_its_storage_is_refused(path):
    """The missing numbers would come from other memory of this process."""
    blob = saved(row_state(SUMS[:2].clone()))
    with zipfile.ZipFile(io.BytesIO(blob)) as file:
        data = file.read("archive/data.pkl")
        storage = file.read("archive/data/0")
    grown = data.replace(b"K\x00K\x02\x85", b"K\x00K\x05\x85")
    assert grown != data
    entries = [("archive/data.pkl", grown), ("archive/data/0", storage), ("archive/version", "3\n")]
    with pytest.raises(FormatError, match="not readable"):
        read_sums(path, archive([*entries, ("archive/byteorder", "little")]))


class Calls:
    """Pickles into a call of ``function(*arguments)``."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def hostile_pickles(canary):
    """Yield pickles that would create the file ``canary``, each by another way."""
    target = str(canary)
    script = f"open({target!r}, 'w')"
    import os
    import shutil
    import subprocess

    calls = {
        "touch": Calls(Path.touch, canary),
        "exec": Calls(exec, script),
        "eval": Calls(eval, script),
        "system": Calls(os.system, f"touch {target}"),
        "popen": Calls(subprocess.Popen, ["touch", target]),
        "open": Calls(open, target, "w"),
        "mkdir": Calls(os.mkdir, target),
        "copy": Calls(shutil.copy, __file__, target),
        "torch.save": Calls(torch.save, {}, target),
        "nested load": Calls(pickle.loads, pickle.dumps(Calls(os.mkdir, target))),
        "getattr": Calls(getattr, canary, "touch"),
    }
    for protocol in (0, 1, 2, 3, 4, 5):
        for name, call in calls.items():
            value = {"state": {0: {"sum": call}}, "param_groups": []}
            yield f"{name}, protocol {protocol}", pickle.dumps(value, protocol)
    command = f"touch {target}".encode()
    yield "INST", b"(S'" + command + b"'\nios\nsystem\n."
    yield "OBJ", b"(cos\nsystem\nS'" + command + b"'\no."
    yield "EXT", b"\x82\x01."
    yield "PERSID", b"P" + command + b"\n."
    yield "BUILD", b"ccollections\nOrderedDict\n)R}S'x'\nS'y'\nsb."


def test_hostile_pickle_runs_no_program(path, tmp_path):
    canary = tmp_path / "canary"
    for name, data in hostile_pickles(canary):
        with pytest.raises(FormatError, match=r"pickle (opcode|names) .* not allowed"):
            read_sums(path, around(data))
        assert not canary.exists(), name


def test_hostile_pickles_would_run_in_plain_pickle(tmp_path):
    """Each pickle creates its canary file where nothing vets it."""
    canary = tmp_path / "canary"
    for data in [data for name, data in hostile_pickles(canary) if name.startswith("touch")]:
        pickle.loads(data)  # noqa: S301 - that it is unsafe is what is shown
        assert canary.exists()
        canary.unlink()


def test_second_pickle_in_archive_stays_unread(path, tmp_path):
    """Archives that readers could interpret differently are refused.

    Others are reduced to the vetted part.
    """
    canary = tmp_path / "canary"
    evil = pickle.dumps(Calls(Path.touch, canary), 2)
    good = saved(row_state(SUMS))
    with zipfile.ZipFile(io.BytesIO(good)) as file:
        entries = [(info.filename, file.read(info)) for info in file.infolist()]
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive([*entries, ("archive/data.pkl", evil)])
    for blob in (twice, archive([*entries, ("other/data.pkl", evil)]), archive([*entries, ("archive/x.py", b"")])):
        with pytest.raises(FormatError, match="unexpected entry"):
            read_sums(path, blob)
    with pytest.raises(FormatError, match="is compressed"):
        read_sums(path, archive(entries, zipfile.ZIP_DEFLATED))
    np.testing.assert_array_equal(read_sums(path, around(evil) + good), SUMS.numpy())
    assert not canary.exists()


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "not an archive"),
        (b"PK\x03\x04 not a zip", "not an archive"),
        (pickle.dumps({}), "not an archive"),
        (saved({}, _use_new_zipfile_serialization=False), r"torch before 1\.6.*delete this dataset"),
        (archive([("archive/version", "3\n")]), "data.pkl is missing"),
        (around(b"garbage"), "pickle"),
        (around(b""), "damaged pickle"),
        (around(b"\x80\x02}"), "damaged pickle"),
        (around(b"\x80\x02(X\xff\xff\xff\x7fa."), "damaged pickle"),
        (around(b"\x80\x02u."), "not readable"),
        (around(b"\x80\x02ccollections\nOrderedDict\nK\x01R."), "not readable"),
    ],
)
def test_damaged_blobs_are_refused(path, blob, reason):
    with pytest.raises(FormatError, match=rf"v1\.h5: optimizer/state_dict: .*{reason}"):
        read_sums(path, blob)


def test_mutated_blobs_never_crash(path):
    generator, good, refused = np.random.default_rng(3), saved(row_state(SUMS, step=0)), 0
    for _ in range(300):
        blob = bytearray(good)
        for position in generator.integers(0, len(blob), 4):
            blob[position] = generator.integers(256)
        try:
            read_sums(path, bytes(blob))
        except FormatError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64])
def test_a_state_is_read_as_torch_reads_it(kind):
    square = torch.arange(12).to(kind).reshape(3, 4)
    tensors = [square, square.T, square[1:, 2], square[0, 0], square[:0], square.expand(2, 3, 4)]
    blob = saved(row_state(SUMS, step=torch.tensor(2.0), tensors=tensors, other=(None, True, -1, 1 << 40, "é", [])))
    loaded, wanted = load_state(blob, source="x"), torch.load(io.BytesIO(blob), weights_only=True)
    assert loaded["param_groups"] == wanted["param_groups"] == [{"lr": 0.1, "params": [0]}]
    state, expected = loaded["state"][0], wanted["state"][0]
    assert state["other"] == expected["other"]
    assert float(state["step"]) == 2
    for array, tensor in zip((state["sum"], *state["tensors"]), (SUMS, *expected["tensors"]), strict=True):
        assert array.dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(array, tensor.numpy())
