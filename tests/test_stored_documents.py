"""Stored documents of earlier and later versions are read: docs/dev/stored-documents.md."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import pbg_tasks
from pbg_tasks.checkpoint import Iteration, PreservedManifest
from pbg_tasks.checkpoint.live import watch_progress
from pbg_tasks.checkpoint.manifest import Head, Manifest, Stamped, decode, encode, encode_unique
from pbg_tasks.checkpoint.partial_record import PartialRecord
from pbg_tasks.checkpoint.segments import Segment, read_progress
from pbg_tasks.config import RunSpec
from pbg_tasks.config.base import Frozen, canonical_json
from pbg_tasks.config.results import (
    SHAPES,
    EvalPartResult,
    EvalReleasesResult,
    ExportResult,
    parse_result,
    read_result,
    shape_of,
)
from pbg_tasks.config.tune_results import Outcome, Rung, Search
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.directory import parse_iteration_line, parse_stats_line, read_config
from pbg_tasks.publish import Channel
from pbg_tasks.publish.exchange.manifest import ExchangeManifest, PartRecord, UnfinishedMark
from pbg_tasks.publish.gc_holds import Tombstone, read_decision
from pbg_tasks.publish.looks import Seen
from pbg_tasks.publish.release import Current, Release
from pbg_tasks.publish.retention import Pin, pins
from pbg_tasks.publish.service_pins import ServicePin
from pbg_tasks.publish.sinks.base import TableRecord
from pbg_tasks.publish.sinks.filed import Pointer
from pbg_tasks.publish.skips import Skipped, skipped
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.approval import Decision, decisions
from pbg_tasks.tasks.context import CHAIN, RunContext, _Refusal
from pbg_tasks.tasks.failure import Failure
from pbg_tasks.tasks.files import FileSet
from pbg_tasks.tasks.view.show import show

REPOSITORY = Path(__file__).resolve().parents[1]
FIXTURES = REPOSITORY / "tests" / "fixtures" / "documents"
VERSIONS = sorted(path for path in FIXTURES.iterdir() if (path / "runs").is_dir() and (path / "channels").is_dir())
"""Stores of whole nights; the other folders hold documents that a later version added."""
FILES = sorted(path for path in FIXTURES.rglob("*") if path.is_file())
PAGE = REPOSITORY / "docs" / "dev" / "stored-documents.md"

MODELS = {
    r"runs/[^/]+/spec\.json": RunSpec,
    r"runs/[^/]+/(entities|edges|snapshot)/manifest\.json": FileSet,
    r"runs/[^/]+/refused\.json": _Refusal,
    r"runs/[^/]+/failed\.json": Failure,
    r"runs/[^/]+/decisions/\w+\.json": Decision,
    r"(runs/[^/]+/checkpoint|gang)/HEAD\.json": Head,
    r"runs/[^/]+/checkpoint/manifest\.v\d+\.json": Manifest,
    r"(runs/[^/]+/(release|checkpoint/epoch_\d+)|release)/manifest\.json": PreservedManifest,
    r"runs/[^/]+/checkpoint/live\.json": PartialRecord,
    r"gang/progress\.v[\d.e]+\.json": PartialRecord,
    r"gang/partial/e\d+/pieces\.v[\d.]+\.json": Segment,
    r"channels/\w+/releases/\d+\.json": Release,
    r"channels/\w+/CURRENT\.json": Current,
    r"sinks/\w+/_pbg/\w+/tables/\w+\.json": TableRecord,
    r"sinks/\w+/_pbg/\w+/current\.json": Pointer,
    r"channels/\w+/pins/\d+\.json": Pin,
    r"channels/\w+/pins/for-[\w-]+\.json": ServicePin,
    r"channels/\w+/unplanned/[^/]+/[^/]+\.json": Failure,
    r"channels/\w+/skipped/[^/]+\.json": Skipped,
    r"\.looks/[^/]+\.json": Seen,
    r"gc/[^/]+\.json": Tombstone,
    r"exports/[^/]+/[^/]+/_manifest\.json": ExchangeManifest,
    r"exports/[^/]+/_unfinished\.json": UnfinishedMark,
    r"exports/[^/]+/[^/]+/_parts/\w+/\w+\.json": PartRecord,
    r"tune/[0-9a-f]+/search\.json": Search,
    r"tune/[0-9a-f]+/rung-\d+\.json": Rung,
    r"tune/[0-9a-f]+/trials/[0-9a-f]+/(rung-\d+|failed)\.json": Outcome,
}
"""The model of each document, by its key in the store of a graph."""
STRICT = {RunSpec}
"""Documents in which every key decides what a task does."""


NO_FIELD = FieldInfo(default=None)


def model_of(path):
    key = str(path.relative_to(FIXTURES)).partition("/")[2]
    return next((model for pattern, model in MODELS.items() if re.fullmatch(pattern, key)), None)


def is_marker(path):
    return path.name in {"held.json", "planned.json"}


def read_by_its_reader(path):
    """Read a document as the package does."""
    data, source = path.read_bytes(), path.name
    model = model_of(path)
    if model is not None:
        return decode(model, data, source=source, ignore_unknown=model not in STRICT)
    if path.parent.name == "results":
        return read_result(path.stem, data, source=source)
    if path.name == "config.json":
        return read_config(data, source=source)
    if path.name == "training_stats.json":
        lines = data.decode().splitlines()
        return [parse_stats_line(line, source=source) or parse_iteration_line(line) for line in lines]
    assert is_marker(path), f"{path}: no reader is known for it"
    return data


def lost(stored, found, key=""):
    """Name values that a reader lost; it may have more."""
    if isinstance(stored, dict):
        return [name for each in stored for name in lost(stored[each], found.get(each, "nothing"), f"{key}.{each}")]
    if isinstance(stored, list):
        return [name for pair in zip(stored, found, strict=True) for name in lost(*pair, f"{key}[]")]
    return [] if stored == found else [key]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_document_of_earlier_version_is_read(path):
    found = read_by_its_reader(path)
    if is_marker(path):
        assert found == b"{}"
    elif isinstance(found, Frozen):
        assert lost(json.loads(path.read_bytes()), found.model_dump(mode="json")) == []
    else:
        assert found
        assert None not in found


SPECS = [path for path in FILES if path.name == "spec.json"]
GATES_SINCE = ("min_over_start", "min_over_popularity", "min_common_edges", "on_few_common_edges")
"""Gates that count for nights of today, so that a spec has them even with their defaults."""


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.parent.name)
def test_spec_gains_no_key_at_its_default(path):
    # Else unchanged nights get other ids, and earlier versions refuse them.
    stored = json.loads(path.read_bytes())
    found = decode(RunSpec, path.read_bytes(), source=path.name).model_dump(mode="json")
    gates = found["graph"]["gates"]
    found["graph"]["gates"] = {gate: value for gate, value in gates.items() if gate not in GATES_SINCE}
    assert found == stored


OF_CHAIN = [path for path in FILES if path.parent.name == "results" and path.stem in SHAPES]


OF_PARTS = sorted((FIXTURES / "0.1.0-parts").rglob("results/*.json"))


@pytest.mark.parametrize("path", [*OF_CHAIN, *OF_PARTS], ids=lambda path: str(path.relative_to(FIXTURES)))
def test_result_read_by_model_keeps_its_bytes(path):
    shape = shape_of(path.stem)
    found = parse_result(shape, path.read_bytes(), source=path.name)
    assert canonical_json(found.document()) == path.read_bytes()
    later = canonical_json(json.loads(path.read_bytes()) | {"of_a_later_version": {"ratio": 1, "loss": 1.0}})
    assert canonical_json(parse_result(shape, later, source=path.name).document()) == later


def test_results_of_parts_have_fixtures_and_models():
    found = {path.stem: shape_of(path.stem) for path in OF_PARTS}
    shapes = {EvalReleasesResult.TASK: EvalReleasesResult, "eval-1-of-2": EvalPartResult}
    assert found == shapes | {"export-npy-1-of-2": ExportResult}


def test_every_task_of_the_chain_has_result_fixtures():
    assert {path.stem for path in OF_CHAIN} == set(SHAPES) == set(CHAIN)


NO_MODELS = {"pbg_tasks.__main__", "pbg_tasks.native._native", "pbg_tasks.training.engine.row_kernels"}  # takes Triton


def every_model():
    for module in pkgutil.walk_packages(pbg_tasks.__path__, "pbg_tasks."):
        if module.name not in NO_MODELS:
            importlib.import_module(module.name)
    left = [Frozen]
    while left:
        model = left.pop()
        left.extend(model.__subclasses__())
        yield model


def test_every_stored_model_has_fixtures_and_line():
    """A new document needs a fixture, a reader and a line."""
    models = set(every_model())
    numbered = {model for model in models if model.model_fields.get("format", NO_FIELD).default == 1}
    numbered |= {model for model in models if issubclass(model, Stamped)} - {Stamped}
    assert numbered <= set(MODELS.values())
    assert set(MODELS.values()) == {model_of(path) for path in FILES} - {None}
    page = PAGE.read_text()
    assert [model.__name__ for model in MODELS.values() if f"`{model.__name__.lstrip('_')}`" not in page] == []


# ---- documents of a later version


def later(value):
    """Return a document with one unknown key in each part."""
    if isinstance(value, BaseModel):
        return {name: later(getattr(value, name)) for name in type(value).model_fields} | {"of_a_later_version": 1}
    if isinstance(value, dict):
        return {name: later(each) for name, each in value.items()}
    return [later(each) for each in value] if isinstance(value, list | tuple) else value


LENIENT = [path for path in FILES if model_of(path) is not None and model_of(path) not in STRICT]


@pytest.mark.parametrize("path", LENIENT, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_unknown_keys_of_later_version_are_ignored(path):
    model = model_of(path)
    now = decode(model, path.read_bytes(), source="now")
    data = json.dumps(later(now), default=str).encode()
    assert b"of_a_later_version" in data
    assert decode(model, data, source="later") == now


@pytest.mark.parametrize("model", [Release, Tombstone, Manifest], ids=lambda model: model.__name__)
def test_document_that_requires_unknown_key_is_refused(model):
    path = next(path for path in FILES if model_of(path) is model)
    document = json.loads(path.read_bytes())
    known = next(iter(document))
    decode(model, json.dumps(document | {"requires": [known]}).encode(), source="d.json")
    with pytest.raises(FormatError, match=r"d\.json: requires 'withdrawn', which this version does not know"):
        decode(model, json.dumps(document | {"requires": [known, "withdrawn"]}).encode(), source="d.json")
    for damaged in ("withdrawn", [1], {"withdrawn": 1}, None):
        with pytest.raises(FormatError, match="'requires' takes a list of keys"):
            decode(model, json.dumps(document | {"requires": damaged}).encode(), source="d.json")
    with pytest.raises(FormatError, match="format 2 is not known to this version"):
        decode(model, json.dumps(document | {"format": 2}).encode(), source="d.json")


def test_missing_or_mistyped_key_is_still_refused():
    path = next(path for path in FILES if model_of(path) is Release)
    document = json.loads(path.read_bytes())
    for wrong in ({**document, "seq": "seven"}, {name: each for name, each in document.items() if name != "run"}):
        with pytest.raises(FormatError, match=r"seq: |key 'run' is missing"):
            decode(Release, json.dumps(wrong).encode(), source="d.json")


# ---- a whole store of an earlier version


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def store(request, tmp_path):
    shutil.copytree(request.param, tmp_path / "store")
    return LocalStore(tmp_path / "store")


def run_of(store, snapshot):
    return next(info.key.split("/")[1] for info in store.list(f"runs/{snapshot}"))


def test_runs_of_earlier_version_open_and_show(store):
    first, second, third = (RunContext.within(store, run_of(store, day)) for day in ("d1", "d2", "d3"))
    assert (first.spec.previous, second.spec.previous.warm_start) == (None, True)
    assert second.spec.previous.run == first.run_id
    store.put(third.key("refused.json"), store.get(third.key("refused.json")).data)  # a refusal follows its plan
    assert third.refusal() == json.loads(store.get(third.key("refused.json")).data)["reason"]
    assert {entry["task"]: entry["by"] for entry in decisions(third)} == {"gate": "a person"}
    assert [show(run.url)["release"]["release"] for run in (first, second)] == [1, 2]
    assert read_decision(store, third.run_id).state == "condemned"


def test_later_versions_run_spec_is_refused(store):
    """Every key of a spec matters, so none may be ignored."""
    spec = json.loads(store.get(f"runs/{run_of(store, 'd1')}/spec.json").data)
    for changed in (spec | {"sampler": "new"}, spec | {"graph": spec["graph"] | {"sampler": "new"}}):
        with pytest.raises(FormatError, match=r"unknown key '(graph\.)?sampler'.*or is of a later version"):
            decode(RunSpec, json.dumps(changed).encode(), source="spec.json", ignore_unknown=False)


def test_channel_of_earlier_version_is_read(store):
    channel = Channel(store, "production")
    pointer = channel.current()
    assert (pointer.release.seq, pointer.rolled_back) == (1, True)
    assert [release.seq for release in channel.releases()] == [1, 2]
    assert (pins(channel), set(skipped(channel))) == ({1}, {"d3"})


def test_gang_record_of_earlier_version_is_read(store):
    head = decode(Head, store.get("gang/HEAD.json").data, source="HEAD.json")
    progress = read_progress(store, "gang", head.progress)
    assert progress.done
    assert progress.iteration == Iteration(
        number=1, epoch_idx=0, num_epochs=2, edge_path_idx=0, num_edge_paths=1, edge_chunk_idx=0, num_edge_chunks=1
    )
    assert watch_progress(store, "gang")[0] == progress


@pytest.mark.parametrize("written_by", ["an earlier version", "a later version"])
def test_rollback_to_foreign_release_leaves_readable_pointer(tmp_path, written_by):
    """The pointer holds the hash of the release as stored."""
    shutil.copytree(VERSIONS[0], tmp_path / "store")
    store = LocalStore(tmp_path / "store")
    channel = Channel(store, "production")
    key = channel.release_key(2)
    document = json.loads(store.get(key).data)
    if written_by == "a later version":
        document["sampler"] = "new"
    else:
        del document["metrics"]  # as from before this field existed: it is read with the default
    store.put(key, json.dumps(document).encode())
    channel.rollback(to=2)
    assert channel.current().release.seq == 2


def test_nonce_is_no_part_of_a_document():
    tombstone = Tombstone(state="rescued")
    assert decode(Tombstone, encode_unique(tombstone), source="gc") == tombstone
    assert b"requires" not in encode(tombstone)  # an earlier version would refuse it
