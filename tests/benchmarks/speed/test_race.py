"""The user's race: kept states of each side, and reports."""

from __future__ import annotations

from benchmarks.speed import race
from benchmarks.speed.harness import RACERS, Tools

OURS = race.Finish({"import": 2.0, "train": 198.0}, 0.805, 20)
THEIRS = race.Finish({"import": 100.0, "train": 3900.0}, 0.79, 50)


def finished(tools, monkeypatch):
    """Let both sides finish at once."""
    monkeypatch.setattr(race, "_our_race", lambda _: OURS)
    monkeypatch.setattr(race, "_their_race", lambda _: THEIRS)
    return race.measure(tools, quick=False)


def test_each_side_can_run_at_another_time(tmp_path, monkeypatch):
    def tools(*racers):
        return Tools(tmp_path / "run", tmp_path, tmp_path, racers=racers)

    assert finished(tools("theirs"), monkeypatch) == []
    (both,) = finished(tools("ours"), monkeypatch)
    assert (both.ours, both.theirs, both.ratios) == (200.0, 4000.0, (20.0,))
    assert both.details["train, our s"] == 198.0
    assert both.details["train, PBG's s"] == 3900.0
    assert "PBG: MRR 0.7900 after 50 epochs" in both.note
    assert both.note.endswith("PBG's time is of an earlier run")
    (together,) = finished(tools(*RACERS), monkeypatch)
    assert "earlier" not in together.note


def test_own_side_is_reported_alone(tmp_path, monkeypatch):
    (alone,) = finished(Tools(tmp_path / "run", tmp_path, tmp_path, racers=RACERS[:1]), monkeypatch)
    assert (alone.ours, alone.theirs, alone.ratios) == (200.0, None, ())
    assert "MRR 0.8050 after 20 epochs of fb15k.yaml with dimension=400" in alone.note


def test_progress_of_pbg_is_kept_until_finish(tmp_path):
    record = race._Record(tmp_path / "record.json")
    record.add("train", 100.0, [5, 0.5])
    record.add("train", 50.0, [10, 0.6])
    again = race._Record(tmp_path / "record.json")
    assert again.seconds == {"train": 150.0}
    assert again.curve == [[5, 0.5], [10, 0.6]]
    extrapolated = race._TheirRace(Tools(tmp_path, tmp_path, tmp_path), tmp_path, {}, again)._finish()
    assert extrapolated.total == 750.0
    assert "EXTRAPOLATED" in extrapolated.note


def test_pbg_continues_after_an_extrapolated_finish(tmp_path, monkeypatch):
    root = tmp_path / "race" / "theirs"
    commands = []
    monkeypatch.setattr(race._TheirRace, "_command", lambda _, *told: commands.append(told[-1]) or 100.0)
    monkeypatch.setattr(race._TheirRace, "_mrr", lambda _: 0.5)
    root.mkdir(parents=True)
    record = race._Record(root / "record.json")
    record.add("import", 1.0)
    record.add("eval", 1.0)
    short = race._their_race(Tools(tmp_path / "run", tmp_path, tmp_path, race_epochs=5))
    assert (short.epochs, short.total) == (5, 1002.0)
    whole = race._their_race(Tools(tmp_path / "run", tmp_path, tmp_path, race_epochs=50))
    assert (whole.epochs, whole.total) == (50, 1002.0)
    assert commands == [f"num_epochs={epochs}" for epochs in range(5, 55, 5)]
    assert not root.exists()
