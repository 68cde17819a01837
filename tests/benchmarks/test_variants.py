from __future__ import annotations

import json
from types import SimpleNamespace

from benchmarks.quality import variants
from benchmarks.quality.commands import Clock


def test_variance_is_of_sampled_trainings_alone(tmp_path, monkeypatch):
    """Configs with dense gradients refuse it."""
    configs, trained, clock = [], [], Clock()

    def run(what, *arguments):
        clock.add(what, 1.0, 1.0)
        if what == "train":
            trained.append([each for each in arguments if each.startswith("gradient")])
        return {"seconds": 1.0, "filtered": dict.fromkeys(variants.FIGURES, 0.5)}

    class Commands(SimpleNamespace):
        __call__ = staticmethod(run)

    def imported(directory, data, config, of):
        configs.append(config)
        return Commands(directory=directory, clock=clock)

    monkeypatch.setattr(variants, "imported", imported)
    monkeypatch.setattr(variants, "RESULTS", tmp_path)
    variants.main("gradient", data=tmp_path, seeds=1, epochs=1, variance=1.0, only=["fb15k"])
    assert trained == [["gradient=dense"], ["gradient=sampled", "gradient_variance=1.0"]]
    assert all("gradient_variance" not in config for config in configs)
    assert json.loads((tmp_path / "gradient-1.json").read_text())["fb15k"][1]["gradient"] == "sampled"
    variants.main("gradient", data=tmp_path, seeds=1, epochs=1, loss="logistic", only=["fb15k"])
    assert [config["loss_fn"] for config in configs] == ["softmax", "logistic"]
    assert (tmp_path / "gradient-logistic-0.1.json").exists()
