from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.training.data.parameters import SharedParameters
from tests.model.configs import one_type

LHS, RHS = (f"relations/0/operator/{side}/translations" for side in ("lhs", "rhs"))


def shared(count, *, dynamic=True):
    config = one_type({"operator": "translation"}, dimension=3, dynamic_relations=dynamic, global_emb=False)
    return SharedParameters(config, count)


def stored(count, value):
    return {path: np.full((count, 3), value, np.float32) for path in (LHS, RHS)}


def test_new_relations_keep_their_start():
    params = shared(5)
    params.load(stored(3, 7.0), stored(3, 2.0))
    values, sums = params.arrays()
    assert values[LHS].tolist() == [[7.0] * 3] * 3 + [[0.0] * 3] * 2
    assert sums[RHS].tolist() == [[2.0] * 3] * 3 + [[0.0] * 3] * 2


def test_stored_arrays_are_copied():
    params, source = shared(3), stored(3, 7.0)
    params.load(source, {})
    source[LHS][:] = 0
    assert (params.arrays()[0][LHS] == 7).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop(RHS), "rhs/translations: not in the model file"),
        (lambda arrays: arrays.update(more=arrays[LHS]), "model/more: in the model file, but not of this config"),
        (lambda arrays: arrays.update({RHS: np.ones((6, 3), np.float32)}), r"shape \(6, 3\).* needs \(5, 3\)"),
        (lambda arrays: arrays.update({RHS: np.ones((5, 4), np.float32)}), r"shape \(5, 4\).* needs \(5, 3\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
    params, arrays = shared(5), stored(5, 7.0)
    change(arrays)
    with pytest.raises(FormatError, match=message):
        params.load(arrays, {})
    assert not params.arrays()[0][LHS].any()


def test_parameters_missing_in_checkpoint_keep_their_start(capsys):
    params = shared(3)
    before = {path: value.copy() for path, value in params.arrays()[0].items()}
    params.load({}, {})
    assert before
    for path, value in before.items():
        assert np.array_equal(params.arrays()[0][path], value)
    assert "has no operators or global embeddings" in capsys.readouterr().err


def test_vector_of_standard_mode_never_grows():
    path = "relations/0/operator/rhs/translation"
    with pytest.raises(FormatError, match="shape"):
        shared(1, dynamic=False).load({path: np.ones(2, np.float32)}, {})
