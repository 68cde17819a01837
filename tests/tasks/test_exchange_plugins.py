"""Exchange formats of other packages, correct and faulty."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.base import digest
from pbg_tasks.config.exports import Export, ExportOptions
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.publish.exchange import ReadOptions
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.model.plugins import package_folder
from tests.tasks.conftest import Workplace, ring
from tests.tasks.exchanges import files, model

LINES = """
import json

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange import Block, Format, Options, Vectors


class Digits(Options):
    digits: int = 9


class Lines(Format):
    write_options = Digits

    def write(self, contents, outbox, options):
        for rows in contents.entities.values():
            with outbox.path(f"{rows.entity}.jsonl").open("w") as out:
                for block in rows.blocks():
                    for name, vector in zip(block.names, block.vectors.tolist(), strict=True):
                        out.write(json.dumps([name, [round(x, options.digits) for x in vector]]) + chr(10))
            outbox.record(rows, f"{rows.entity}.jsonl")
        return {"digits": options.digits}

    def read(self, inbox, entity, options):
        for entity, (file,) in inbox.typed((".jsonl",), entity).items():
            with inbox.local(file) as path:
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                if not rows:
                    raise FormatError(f"{inbox.source(file)}: is empty")
                vectors = np.array([vector for _, vector in rows], np.float32)
                blocks = iter([Block([name for name, _ in rows], vectors)])
                yield Vectors(entity, vectors.shape[1], inbox.source(file), blocks)
"""
NAMED = "exchange format 'lines', entry point lines:Lines of the package lines 1.0, "


@pytest.fixture
def install(tmp_path, scratch):
    with package_folder(tmp_path / "site") as write:
        yield lambda source: write("lines", source, {"pbg_tasks.exchange": {"lines": "lines:Lines"}})


def test_export_of_package_is_imported_again(tmp_path, install):
    install(LINES)
    data = model(tmp_path / "data")
    done = export("lines", str(data.checkpoint), str(tmp_path / "out"), options=ExportOptions(types=("user",)))
    assert files(tmp_path / "out") == ["_manifest.json", "user.jsonl"]
    assert done["measured"] == {"digits": 9}
    import_embeddings("lines", str(tmp_path / "out"), str(tmp_path / "back"))
    names = json.loads((tmp_path / "back" / "user.json").read_text())
    assert names == data.names["user"]
    export("npy", str(data.checkpoint), str(tmp_path / "npy"), options=ExportOptions(types=("user",)))
    assert json.loads((tmp_path / "npy" / "user.json").read_text()) == names
    np.testing.assert_allclose(np.load(tmp_path / "back/user.npy"), np.load(tmp_path / "npy/user.npy"), atol=1e-8)


def test_options_of_package_come_from_command(tmp_path, install):
    install(LINES)
    data = model(tmp_path / "data")
    arguments = ["export", "lines", str(data.checkpoint), str(tmp_path / "out"), "--option", "digits=2", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert json.loads(result.stdout)["measured"] == {"digits": 2}


def test_night_exports_in_format_of_package(tmp_path, install):
    install(LINES)
    (tmp_path / "place").mkdir()
    place = Workplace(tmp_path / "place")
    place.snapshot("d1", ring(40))
    place.write_spec(exports=[{"format": "lines", "options": {"digits": 3}}])
    run_chain(place.spec, "d1")
    (manifest,) = (tmp_path / "place").rglob("exports/lines/*/_manifest.json")
    assert json.loads(manifest.read_text())["measured"] == {"digits": 3}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"options": {"digit": 2}}, "options of format lines: unknown key 'digit'; did you mean 'digits'?"),
        ({"options": {"digits": "many"}}, "options of format lines: digits: "),
        ({"limit": 3}, "format lines has no option 'limit'"),
    ],
)
def test_wrong_option_of_package_is_refused(tmp_path, install, options, problem):
    install(LINES)
    data = model(tmp_path / "data")
    with pytest.raises(ConfigError) as error:
        export("lines", str(data.checkpoint), str(tmp_path / "out"), options=ExportOptions(**options))
    assert problem in str(error.value)
    assert not (tmp_path / "out").exists()


def test_option_of_package_is_unknown_to_built_in():
    with pytest.raises(ConfigError, match="format parquet has no option 'options'"):
        export("parquet", "nowhere", "out", options=ExportOptions(options={"digits": 2}))
    with pytest.raises(ConfigError, match="format npy has no option 'digits'"):
        import_embeddings("npy", "nowhere", "out", options=ReadOptions(options={"digits": 2}))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import gone", "failed: ModuleNotFoundError: No module named 'gone'"),
        ("Lines = 1", "is 1, not a subclass or an instance of pbg_tasks.publish.exchange.registry.Format"),
        (LINES + "        raise KeyError('x')", "failed: KeyError: 'x'"),
    ],
)
def test_fault_of_package_is_named(tmp_path, install, source, problem):
    install(source)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "n.jsonl").write_text('["a", [1.0, 2.0]]\n')
    with pytest.raises(ConfigError) as error:
        import_embeddings("lines", str(tmp_path / "in"), str(tmp_path / "out"), options=ReadOptions("n"))
    assert str(error.value).startswith(NAMED + problem)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("names", "vectors", "problem"),
    [
        ("names", "vectors[:1]", r"2 names with float32 of shape \(1, 2\)"),
        ("names[:1]", "vectors", r"1 names with float32 of shape \(2, 2\)"),
        ("names", "vectors[:, :1]", r"2 names with float32 of shape \(2, 1\)"),
        ("names", "vectors.astype(int)", r"2 names with int64 of shape \(2, 2\)"),
        ("[1, 2]", "vectors", r"texts and float32 of shape \(2, 2\) are needed"),
    ],
)
def test_blocks_of_package_have_to_fit(tmp_path, install, names, vectors, problem):
    block = "Block([name for name, _ in rows], vectors)"
    install(LINES.replace(block, f"Block({names.replace('names', '[name for name, _ in rows]')}, {vectors})"))
    (tmp_path / "n.jsonl").write_text('["a", [1.0, 2.0]]\n["b", [3.0, 4.0]]\n')
    with pytest.raises(ConfigError, match=f"{NAMED}is wrong: read yields .*{problem}"):
        import_embeddings("lines", str(tmp_path / "n.jsonl"), str(tmp_path / "out"), options=ReadOptions("n"))
    assert not (tmp_path / "out").exists()


def test_doubles_of_package_beyond_float32_are_refused(tmp_path, install):
    install(LINES.replace("for _, vector in rows], np.float32)", "for _, vector in rows])"))
    (tmp_path / "n.jsonl").write_text('["a", [1.0, 2.0]]\n["b", [3.0, 1e300]]\n')
    with pytest.raises(FormatError, match="the vector of 'b' is not finite in float32"):
        import_embeddings("lines", str(tmp_path / "n.jsonl"), str(tmp_path / "out"), options=ReadOptions("n"))


def test_fault_of_package_at_write_is_named(tmp_path, install):
    install(LINES.replace('return {"digits": options.digits}', "return None"))
    data = model(tmp_path / "data")
    with pytest.raises(ConfigError, match=f"{NAMED}is wrong: write returns NoneType, not a dict of figures"):
        export("lines", str(data.checkpoint), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_bad_input_is_blamed_on_the_file(tmp_path, install):
    install(LINES)
    (tmp_path / "n.jsonl").write_text("")
    with pytest.raises(FormatError, match=r"n\.jsonl: is empty"):
        import_embeddings("lines", str(tmp_path / "n.jsonl"), str(tmp_path / "out"), options=ReadOptions("n"))


def test_format_without_reader_is_refused(tmp_path, install):
    install(LINES.partition("    def read")[0])
    with pytest.raises(ConfigError, match="exchange format 'lines' does not read: its class Lines has no 'read'"):
        import_embeddings("lines", str(tmp_path), str(tmp_path / "out"))


def test_broken_package_leaves_other_formats(tmp_path, install):
    install("import gone")
    data = model(tmp_path / "data")
    export("npy", str(data.checkpoint), str(tmp_path / "out"), options=ExportOptions(types=("user",)))
    with pytest.raises(ConfigError, match=r"no exchange format is named 'glove'; there are .*, tsv, lines, and those"):
        export("glove", str(data.checkpoint), str(tmp_path / "more"))


def test_spec_names_format_without_import(install):
    install("import gone")
    assert Export.model_validate({"format": "lines"}).name == "lines"
    with pytest.raises(ValueError, match=r"no exchange format is named 'glove'; known: .*, lines, and"):
        Export.model_validate({"format": "glove"})


def test_export_without_options_keeps_its_document():
    """Ids of runs are hashes of such documents."""
    export = Export.model_validate({"format": "npy"})
    assert "options" not in export.model_dump(mode="json")
    assert digest(export.model_dump(mode="json")) == "a8ab13ef75e9d748b97ace1a778e94f28d65cd30a32a99b69701bc985d689520"
