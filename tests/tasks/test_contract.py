"""Contract in a release's manifest: space, dimensions, comparator and operators."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pbg_tasks import Contract, Model
from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import ConfigError, IncompatibleError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.compatibility import check_same_space, space_of
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.promote import promote
from pbg_tasks.tasks.release.releases import pin
from pbg_tasks.tasks.release.repartition import repartition
from pbg_tasks.tasks.release.replay import replay
from tests.tasks.conftest import MODEL, ring, workplace

DAYS = ("d1", "d2", "d3")


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Three nights: the second continues the first, the third begins anew."""
    with workplace(tmp_path_factory.mktemp("nights")) as place:
        place.write_spec({"num_epochs": 1})
        place.runs = {}
        for number, day in enumerate(DAYS):
            place.snapshot(day, ring(40 + number))
            cold = ["train.warm_start=false"] if day == "d3" else None
            place.runs[day] = Path(run_chain(place.spec, day, overrides=cold)["run"])
        yield place


def contract(run):
    return json.loads((run / "release" / "manifest.json").read_bytes())["contract"]


@pytest.mark.rotated(3)
def test_space_stays_along_warm_nights_only(nights):
    spaces = [contract(run)["space"] for run in nights.runs.values()]
    assert spaces == [nights.runs["d1"].name, nights.runs["d1"].name, nights.runs["d3"].name]
    assert contract(nights.runs["d1"]) | {"space": ""} == {
        "space": "",
        "dimensions": {"n": 8},
        "comparator": "l2",
        "operators": sorted({each["operator"] for each in MODEL["relations"]}),
    }


def test_reader_checks_what_it_relies_on(nights):
    store = nights.store
    with Model.open(store, release=1) as first:
        known = first.contract
    for place in (nights.runs["d2"], nights.runs["d2"] / "release"):
        with Model.open(place, expect=known) as second:
            assert second.contract == known
    with pytest.raises(IncompatibleError) as told:
        Model.open(store, channel="production", expect=known)
    assert f"space is {nights.runs['d3'].name}, not {nights.runs['d1'].name};" in str(told.value)
    wrong = Contract(dimensions={"n": 16, "item": 8}, comparator="cos", operators=("none",))
    with pytest.raises(IncompatibleError) as told:
        Model.open(store, expect=wrong)
    for part in ("comparator is l2, not cos", "dimension of 'n' is 8, not 16", "entity type 'item' is missing"):
        assert part in str(told.value)
    with Model.open(store, expect=Contract(dimensions={"n": 8})) as model:
        assert model.release == 3


def test_expectation_may_be_kept_as_json(nights):
    with Model.open(nights.store, release=1) as first:
        kept = json.loads(json.dumps(first.contract.model_dump(mode="json")))
    with Model.open(nights.store, release=2, expect=kept) as second:
        assert second.contract.space == kept["space"]
    with pytest.raises(IncompatibleError, match="space is "):
        Model.open(nights.store, channel="production", expect=kept)
    with pytest.raises(ConfigError, match="expect: unknown key 'dimension'; did you mean 'dimensions'"):
        Model.open(nights.store, expect={"dimension": {"n": 8}})


def test_release_of_earlier_version_begins_its_space(nights, tmp_path):
    shutil.copytree(nights.store, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    channel = Channel(store, "production")
    first, second, third = channel.releases()
    check_same_space(store, second, first, channel="production")
    with pytest.raises(IncompatibleError, match="release 3 of channel 'production' is in another vector space"):
        check_same_space(store, third, second, channel="production")
    key = f"{first.directory}/manifest.json"
    document = json.loads(store.get(key).data)
    del document["contract"]
    store.put(key, canonical_json(document))
    assert space_of(store, first.model_copy(update={"manifest_sha256": sha256(store.get(key).data)})) == first.run
    with Model.open(tmp_path / "store" / first.directory) as model:
        assert model.contract.space is None
    with pytest.raises(IncompatibleError, match="space is unknown, not s"):
        Model.open(tmp_path / "store" / first.directory, expect=Contract(space="s"))


def test_service_and_key_choose_the_release(nights, capsys):
    promote(nights.spec, 1, to="readers", by="mia")
    promote(nights.spec, 2, to="readers", share=0.5, by="mia")
    pin(nights.spec, 1, service="ads", owner="mia", channel="readers")

    def opened(**reader):
        with Model.open(nights.store, channel="readers", **reader) as model:
            assert f"release {model.release} of channel" in repr(model)
            return Path(model.url).parent.name

    first, second = (nights.runs[day].name for day in ("d1", "d2"))
    assert {opened(key=f"user-{number}") for number in range(8)} == {first, second}
    assert {opened(key="user-1") for _ in range(3)} == {opened(key="user-1")}
    assert opened() == opened(for_service="search") == first
    promote(nights.spec, 2, to="readers", by="mia")
    assert (opened(), opened(for_service="search"), opened(for_service="ads")) == (second, second, first)
    assert opened(for_service="ads", key="user-1") == first
    key = Path(nights.store) / "channels" / "readers" / "pins" / "for-ads.json"
    document = json.loads(key.read_bytes())
    key.write_bytes(canonical_json(document | {"until": "2001-01-01"}))
    assert opened(for_service="ads") == first
    assert "warning: the pin of service 'ads' on release 1 of channel 'readers' ended on 2001-01-01" in (
        capsys.readouterr().err
    )
    with pytest.raises(ConfigError, match="release 1 is named, so no pin or share chooses one"):
        opened(release=1, for_service="ads")
    with pytest.raises(ConfigError, match="is no graph's store with channels"):
        Model.open(nights.runs["d1"], key="user-1")


def test_replayed_and_moved_release_keep_the_space(nights, tmp_path):
    again = tmp_path / "again"
    assert replay(str(nights.runs["d2"]), into=str(again))["equal"]
    made = again / "runs" / nights.runs["d2"].name / "release" / "manifest.json"
    assert made.read_bytes() == (nights.runs["d2"] / "release" / "manifest.json").read_bytes()
    moved = repartition(nights.spec, partitions=3)
    assert contract(Path(moved["directory"]).parent)["space"] == nights.runs["d3"].name
