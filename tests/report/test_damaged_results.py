"""Stored results, damaged or of other versions, one key at a time.

They give a page or one sentence, never a traceback.

The results are those of a real night that continues another one; the commands read them from a real store.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from itertools import islice
from pathlib import Path

import pytest

from pbg_tasks.errors import FormatError, PbgError
from pbg_tasks.publish import Channel
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import Links, live_sections, render
from pbg_tasks.report.run import run_document
from pbg_tasks.tasks.context import CHAIN, RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.forecasting import measured_nights
from pbg_tasks.tasks.nightly.gate import _gate
from pbg_tasks.tasks.nightly.publish import _data
from pbg_tasks.tasks.view.report import read_graph, read_run
from pbg_tasks.tasks.view.show import history, show
from pbg_tasks.tasks.view.tables import history_table, outcome, table
from tests.rotation import rotation
from tests.tasks.conftest import ring, workplace

LINKS = Links(assets="assets", history="history", run="{run}", comparison="comparison")
WRONG = (None, True, 1e400, 10**400, "x", [], {"x": ["y"]})
"""Values that a key may have by mistake: of every type of JSON, and numbers too large to be written out."""
EVERY = 50  # one of so many documents that are refused when read is given to all commands
DAYS = 13  # so many days come to all documents that are not refused; those are given to all commands
SEVERAL = 2  # so many entries of a list or mapping of equal ones are damaged
ALIKE = {(key,) for key in ("relations", "modelled", "seconds", "tasks", "lines", "memory", "usage")}


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("damaged")) as place:
        place.write_spec(
            train={"warm_epochs": 1},
            exports=[{"format": "tsv"}],
            costs={"hour": 1.5, "currency": "EUR"},
            gates={"max_mrr_drop": 1.0, "drift": {"min_cosine": {"warn": 0.1}, "max_norm_change": {"warn": 9.0}}},
        )
        for day, count in (("2026-11-01", 40), ("2026-11-02", 44)):
            place.snapshot(day, ring(count))
            url = run_chain(place.spec, day)["run"]
        yield RunContext.open(url), place.spec


def paths(value, path=()):
    """List the places of a document, keys of keys included.

    Of places that are many times the same, the first ones.
    """
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in islice(items, SEVERAL if isinstance(value, list) or path[-1:] in ALIKE else None):
        yield from paths(inner, (*path, key))


def damages(document):
    """Yield damaged copies of a document: the place and the bytes."""
    for path in list(paths(document)):
        damaged = deepcopy(document)
        parent = damaged
        for key in path[:-1]:
            parent = parent[key]
        for value in WRONG:
            parent[path[-1]] = value
            yield path, json.dumps(damaged).encode()
        del parent[path[-1]]
        yield path, json.dumps(damaged).encode()
    whole = json.dumps(document).encode()
    for data in (b"", whole[: len(whole) // 2], b"null", b"[]", b"3", b"[" * 100_000, b"\xff", b"{}"):
        yield (), data
    yield ("format",), json.dumps(document | {"format": 2}).encode()


def commands(run, spec):
    """Return the readers of results.

    The documents of pages, the pages, the tables and the verdicts.
    """
    channel = Channel(run.store, run.spec.graph.channel)
    before = run_document(read_run(RunContext.within(run.store, run.spec.previous.run)))

    def page():
        document = run_document(read_run(run))
        render(document, LINKS)
        live_sections(document, LINKS)
        render(comparison_document(before, document), LINKS)

    def nights():
        render(history_document(read_graph(run.spec.graph.graph, channel)), LINKS)

    def shown():
        summary = show(run.url)
        table([summary])
        outcome(summary)

    def releases():
        history_table(history(spec))

    return {
        "report": page,
        "nights": nights,
        "show": shown,
        "releases": releases,
        "gate": lambda: _gate(run),
        "publish": lambda: _data(run),
        "plan": lambda: measured_nights(RunContext.within(run.store, run.spec.previous.run)),
    }


def survives(damage, commands):
    """Run the commands; return their errors by command."""
    said = {}
    for name, command in commands.items():
        try:
            command()
        except PbgError as error:
            text = str(error)
            assert "\n" not in text, (name, damage, text)
            said[name] = error
        except Exception as error:  # noqa: BLE001 - each one is what this test looks for
            pytest.fail(f"{name} after damage to {damage}: {error!r}")
    return said


def is_todays(refused, accepted, error):
    """Return whether all commands get a document today.

    It depends on the number before it and on whether it was refused.
    """
    return refused % EVERY == 0 if error else accepted % DAYS == rotation() % DAYS


def refusal(read):
    """Return the reason of a document's refusal; None without one."""
    try:
        read()
    except FormatError as error:
        return str(error)
    return None


def test_release_without_figure_leaves_nights_whole(night):
    """Use a release without a figure, and one with a wrong type.

    An older release may lack what later versions measure; one with a figure of another type is named.
    """
    run, spec = night
    file = Path(run.store.url) / "channels/production/releases/00000001.json"
    good = file.read_bytes()
    able = {name: command for name, command in commands(run, spec).items() if name != "plan"}
    refused, accepted, channel = 0, 0, Channel(run.store, run.spec.graph.channel)
    try:
        for path, data in damages(json.loads(good)):
            if path[:1] in {("metrics",), ("data",)}:
                file.write_bytes(data)
                error = refusal(lambda: channel.release(1))
                assert error is None or "releases/00000001.json" in error
                refused += error is not None
                accepted += error is None
                if is_todays(refused, accepted, error):
                    survives(f"{file.name}, {path}", able)
    finally:
        file.write_bytes(good)
    assert refused > EVERY


def test_refusal_that_is_damaged_is_named(night):
    run, _ = night
    file = Path(run.url) / "refused.json"
    file.write_text('{"reason": 3}')
    try:
        with pytest.raises(FormatError, match=r"refused\.json: reason: Input should be a valid string"):
            read_run(run)
    finally:
        file.unlink()


@pytest.mark.parametrize("task", [*CHAIN, "export-tsv"])
def test_damaged_result_gives_page_or_sentence(night, task):
    run, spec = night
    file = Path(run.url) / "results" / f"{task}.json"
    good = file.read_bytes()
    able = commands(run, spec)
    assert not survives("nothing", able)
    refused = accepted = 0
    try:
        for path, data in damages(json.loads(good)):
            file.write_bytes(data)
            told = f"{file.name}, {'.'.join(map(str, path))}, as {data[:80]!r}"
            error = refusal(lambda: run.result(task))
            if error is not None:
                assert f"results/{task}.json" in error
                assert not path or set(map(str, path)) & set(re.findall(r"\w+", error)), (path, error)
            refused += error is not None
            accepted += error is None
            if not is_todays(refused, accepted, error):
                continue  # all commands read results through this one method
            for error in survives(told, able).values():
                assert isinstance(error, FormatError), error
        file.unlink()
        survives(f"{file.name}, which is gone", able)
    finally:
        file.write_bytes(good)
    assert refused > 50
    assert not survives("nothing", able)
