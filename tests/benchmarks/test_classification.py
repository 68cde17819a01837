from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.quality.classification import F1, LabelledNodes, best_labels, f1_by_share, fit


def test_f1_follows_its_definition():
    truth = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]], bool)
    predicted = np.array([[1, 0, 0], [1, 0, 1], [1, 0, 0]], bool)
    found = F1.of(truth, predicted)
    # label 0: 2 right of 2 true and 3 predicted; label 1: none of 2 and 0; label 2: none of 0 and 1
    assert found.micro == pytest.approx(2 * 2 / (4 + 4))
    assert found.macro == pytest.approx((2 * 2 / 5 + 0 + 0) / 3)


def test_predicted_labels_are_as_many_as_true():
    scores = np.array([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
    assert best_labels(scores, np.array([2, 1])).tolist() == [[False, True, True], [True, False, False]]


def test_fit_is_minimum_of_penalised_loss():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    labels = torch.rand(200, 3, generator=generator) < torch.sigmoid(x[:, :3] * 2 - 1)
    weights = fit(x, labels, inverse_l2=0.5)
    error = torch.sigmoid(x @ weights[:-1] + weights[-1]) - labels.double()
    gradient = torch.cat([0.5 * x.T @ error + weights[:-1], 0.5 * error.sum(0, keepdim=True)])
    assert gradient.abs().max() < 1e-2 < (0.5 * x.T @ (0.5 - labels.double())).abs().max()


def test_learnable_labels_are_found_random_ones_not():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(400, 8)).astype(np.float32)
    labels = np.eye(4, dtype=bool)[(vectors[:, :4] * 3).argmax(1)]
    learnt = f1_by_share(vectors, labels, shares=(0.1, 0.5), splits=2)
    shuffled = f1_by_share(vectors, rng.permutation(labels), shares=(0.5,), splits=2)
    assert learnt["50%"]["micro_f1"] > 85
    assert learnt["10%"]["micro_f1"] < learnt["50%"]["micro_f1"]
    assert shuffled["50%"]["micro_f1"] < 40


def test_node_with_several_lines_has_several_labels(tmp_path):
    path = tmp_path / "labels.tsv"
    path.write_text("b\tred\na\tblue\nb\tblue\n")
    nodes = LabelledNodes.read(path)
    assert nodes.names == ["a", "b"]
    assert nodes.labels_NL.tolist() == [[True, False], [True, True]]
