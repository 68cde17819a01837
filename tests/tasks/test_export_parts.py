"""Exports in parts: equal bytes, and nothing before the merge.

The file is longer than others: every format goes through the same parts, tries and merges.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError, NotFoundError
from pbg_tasks.formats.angel import layout
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.publish.exchange import ReadOptions
from pbg_tasks.publish.exchange.manifest import MANIFEST, MARK, PARTS, ExchangeManifest
from pbg_tasks.storage import LocalStore, open_store
from pbg_tasks.tasks.exchange import delivery, export_parts, gathering
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.export_parts import export_part, merge_parts
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from tests.tasks.exchanges import files, imported, model

FORMATS = ["parquet", "npy", "tsv", "angel"]
OPTIONS = {"tsv": {"escape": True}}


@pytest.fixture
def place(tmp_path, scratch):
    return tmp_path


@pytest.fixture
def data(place, monkeypatch):
    monkeypatch.setattr(layout, "PARTITION_NUMBERS", 24)  # three columns a partition of Angel's, up to 15 a file
    entities = {"user": {"num_partitions": 4}, "item": {"num_partitions": 1}}
    data = model(place / "data", entities=entities, sizes={"user": 30, "item": 40}, global_emb=True)
    hidden = {"user": (np.array([1, 3, 3]), np.array([0, 2, 5])), "item": (np.array([0]), np.array([39]))}
    partition, offset = ({name: pair[side] for name, pair in hidden.items()} for side in (0, 1))
    (data.root / "entities" / EXPIRED).write_bytes(EntitySet(partition, offset).to_bytes())
    return data


def options_of(exchange):
    return ExportOptions(**OPTIONS.get(exchange, {}))


def part(data, exchange, out, text, **keys):
    return export_part(exchange, str(data.checkpoint), str(out), text, **{"options": options_of(exchange)} | keys)


def merge(data, exchange, out, parts, **keys):
    return merge_parts(exchange, str(data.checkpoint), str(out), parts, **{"options": options_of(exchange)} | keys)


def exported(data, exchange, out, parts):
    for number in reversed(range(1, parts + 1)):
        part(data, exchange, out, f"{number}/{parts}")
    return merge(data, exchange, out, parts)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in files(folder)}


@pytest.mark.parametrize("exchange", FORMATS)
def test_parts_have_equal_bytes_whatever_their_number(data, place, exchange):
    results = {parts: exported(data, exchange, place / f"{parts}", parts) for parts in (1, 2, 3, 7)}
    whole = contents(place / "1")
    assert len({name.partition(".")[0] for name in whole if "/part-" in name}) == 5  # of four partitions and of one
    for parts, result in results.items():
        assert contents(place / f"{parts}") == whole
        assert {name: found["rows"] for name, found in result["types"].items()} == {"user": 123, "item": 39}
    assert not list((place / "scratch").iterdir())


@pytest.mark.parametrize("exchange", FORMATS)
def test_parts_hold_what_one_file_holds(data, place, exchange):
    export(exchange, str(data.checkpoint), str(place / "whole"), options=options_of(exchange))
    exported(data, exchange, place / "parts", 3)
    whole, parted = contents(place / "whole"), contents(place / "parts")
    names = sorted(name for name in parted if name.startswith("user/part-"))
    if exchange == "tsv":
        assert b"".join(parted[name] for name in [*names, "item/part-00000.tsv"]) == whole["entity_embeddings.tsv"]
    elif exchange == "npy":
        arrays = [np.load(place / "parts" / name) for name in names if name.endswith(".npy")]
        np.testing.assert_array_equal(np.concatenate(arrays), np.load(place / "whole" / "user.npy"))
    elif exchange == "angel":
        files_of = [name for name in whole if name.startswith(("user_embedding", "item_embedding"))]
        assert len(files_of) > 9
        assert {name: parted.get(name) for name in files_of} == {name: whole[name] for name in files_of}
        mapping = b"".join(parted[name] for name in sorted(parted) if name.startswith("mapping/user/part-"))
        assert mapping == whole["mapping/user/part-00000"]
    else:
        tables = pq.read_table(place / "parts" / "user")
        assert tables.equals(pq.read_table(place / "whole" / "user.parquet"))
    shared = {name for name in whole if name.startswith(("_relations", "relation_types"))}
    assert {name: parted[name] for name in shared} == {name: whole[name] for name in shared}


@pytest.mark.parametrize("exchange", FORMATS)
def test_import_reads_parts_as_whole(data, place, exchange):
    export(exchange, str(data.checkpoint), str(place / "whole"), options=options_of(exchange))
    exported(data, exchange, place / "parts", 2)
    for kind in ("whole", "parts"):
        # A whole tsv has all types in one file, so it is read as one.
        chosen = ReadOptions("user") if exchange == "tsv" and kind == "whole" else ReadOptions()
        import_embeddings(exchange, str(place / kind), str(place / f"{kind}-in"), options=chosen)
    names, vectors = imported(place / "parts-in", "user")
    expected, others = imported(place / "whole-in", "user")
    assert names == expected[: len(names)]
    np.testing.assert_array_equal(vectors, others[: len(names)])


def test_reader_sees_nothing_before_merge(data, place):
    out = place / "out"
    part(data, "npy", out, "1/2")
    assert all(name.startswith(PARTS) for name in files(out))
    with pytest.raises(ConfigError, match=r"part 2/2 of the export of .* is missing; run `pbg export ... --part 2/2`"):
        merge(data, "npy", out, 2)
    part(data, "npy", out, "2/2")
    merge(data, "npy", out, 2)
    assert not [name for name in files(out) if name.startswith((PARTS, "_unfinished"))]
    before = contents(out)
    assert merge(data, "npy", out, 2)["files"] == len(before) - 1
    assert contents(out) == before


@pytest.mark.parametrize("exchange", FORMATS)
def test_import_takes_no_part_for_whole(data, place, exchange):
    part(data, exchange, place / "out", "1/5")
    with pytest.raises(InputError, match="nothing there to import; check the path, or merge the parts of an export"):
        import_embeddings(exchange, str(place / "out"), str(place / "in"))


def test_part_brings_its_own_partitions_only(data, place):
    for pattern in ("checkpoint/embeddings_user_[123]*", "entities/entity_names_user_[123]*"):
        paths = list(data.root.glob(pattern))
        assert len(paths) == 3
        for path in paths:
            path.write_bytes(b"damaged")
    assert part(data, "npy", place / "out", "1/5")["types"]["user"]["rows"] == 30
    with pytest.raises(FormatError, match="entity_names_user_1"):
        part(data, "npy", place / "out", "2/5")


def test_second_try_of_part_does_nothing(data, place, capsys):
    part(data, "npy", place / "out", "1/2")
    before = contents(place / "out")
    part(data, "npy", place / "out", "1/2")
    assert "part 1/2 was stored before, nothing to do" in capsys.readouterr().err
    assert contents(place / "out") == before


def test_parts_of_other_options_are_refused(data, place):
    out = place / "out"
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2")
    with pytest.raises(ConflictError, match=r"part 1/2 is an export to npy with options \{\}, and this one is to tsv"):
        part(data, "tsv", out, "1/2")
    part(data, "npy", out, "1/2", options=ExportOptions(types=("user",)), overwrite=True)
    with pytest.raises(ConflictError, match=r"part 1/2 is an export to npy with options \{'types': \['user'\]\}"):
        merge(data, "npy", out, 2)


def test_part_beside_one_of_other_format_is_refused(data, place):
    out = place / "out"
    part(data, "npy", out, "3/3")
    before = files(out)
    with pytest.raises(ConflictError) as refused:
        part(data, "tsv", out, "1/3")
    assert str(refused.value).startswith(
        f"{out}: part 3/3 is an export to npy with options {{}}, and this one is to tsv "
    )
    assert str(refused.value).endswith("alike: run `pbg export ... --part 3/3 --overwrite`, or name another place")
    assert files(out) == before
    for number in (3, 1, 2):
        part(data, "tsv", out, f"{number}/3", overwrite=number == 3)
    merge(data, "tsv", out, 3)


def test_parts_of_another_version_are_refused(data, place):
    out = place / "out"
    part(data, "npy", out, "1/2")
    path = next(data.checkpoint.glob("embeddings_item_0*"))
    path.write_bytes(path.read_bytes())  # a training has stored it anew
    part(data, "npy", out, "2/2")
    with pytest.raises(ConfigError, match=r"part 1/2 .* is missing \(there is one of .*, which is another version"):
        merge(data, "npy", out, 2)


def test_part_written_anew_may_be_of_newer_version(data, place, monkeypatch):
    out, real, types = place / "out", export_parts.load_newest, ExportOptions(types=("user",))
    part(data, "npy", out, "1/1")

    def load_newest(find, load):
        path = next(data.checkpoint.glob("embeddings_item_0*"))
        path.write_bytes(path.read_bytes())  # a training has stored it anew
        return real(find, load)

    with monkeypatch.context() as patch:
        patch.setattr(export_parts, "load_newest", load_newest)
        part(data, "npy", out, "1/1", options=types, overwrite=True)
    merge(data, "npy", out, 1, options=types)


def test_two_processes_store_one_part_once(data, place, monkeypatch, capsys):
    out, real, again = place / "out", export_parts.records_of, []

    def records_of(outbox):
        if not again:
            again.append(True)
            part(data, "npy", out, "1/1")
        return real(outbox)

    monkeypatch.setattr(export_parts, "records_of", records_of)
    part(data, "npy", out, "1/1")
    assert "was stored by another process meanwhile" in capsys.readouterr().err
    folders = {name.split("/")[2] for name in files(out) if name.count("/") > 2}
    assert len(folders) == 1
    merge(data, "npy", out, 1)


def test_merge_replaces_standing_export(data, place):
    out = place / "out"
    export("npy", str(data.checkpoint), str(out))
    with pytest.raises(ConflictError, match="is not empty"):
        part(data, "npy", out, "1/2")
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2", overwrite=True)
    assert {"user.npy", MANIFEST} <= set(files(out))
    merge(data, "npy", out, 2, overwrite=True)
    assert "user.npy" not in files(out)
    exported(data, "npy", place / "new", 2)
    assert contents(out) == contents(place / "new")


@pytest.mark.parametrize("standing", [False, True])
@pytest.mark.parametrize("call", [1, 7])
def test_merge_that_was_cut_off_is_tried_again(data, place, monkeypatch, standing, call):
    out, calls = place / "out", []
    exported(data, "npy", place / "new", 3)
    if standing:
        export("npy", str(data.checkpoint), str(out))
    for number in (1, 2, 3):
        part(data, "npy", out, f"{number}/3", overwrite=standing)
    real = gathering.move

    def move(*args):
        calls.append(args)
        if len(calls) == call:
            raise OSError("cut off")
        real(*args)

    monkeypatch.setattr(gathering, "move", move)
    with pytest.raises(OSError, match="cut off"):
        merge(data, "npy", out, 3, overwrite=standing)
    assert MANIFEST not in files(out)
    merge(data, "npy", out, 3, overwrite=standing)
    assert contents(out) == contents(place / "new")


def waiting(out, name):
    """Return the file of a part that waits for its merge."""
    (path,) = (out / PARTS).rglob(name)
    return path


def test_missing_file_of_part_leaves_standing_export(data, place):
    out = place / "out"
    export("npy", str(data.checkpoint), str(out))
    standing = contents(out)
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2", overwrite=True)
    waiting(out, "part-00003.npy").unlink()
    with pytest.raises(NotFoundError, match=r"part-00003.npy: is missing; run `pbg export ... --part 2/2`, then merge"):
        merge(data, "npy", out, 2, overwrite=True)
    assert {name: found for name, found in contents(out).items() if not name.startswith(PARTS)} == standing
    part(data, "npy", out, "2/2", overwrite=True)
    merge(data, "npy", out, 2, overwrite=True)
    exported(data, "npy", place / "new", 2)
    assert contents(out) == contents(place / "new")


@pytest.mark.parametrize(("exchange", "name"), [("npy", "user/part-00001.npy"), ("angel", "user_embedding/_meta")])
def test_part_whose_file_is_gone_is_written_again(data, place, exchange, name):
    out = place / "out"
    for number in (1, 2):
        part(data, exchange, out, f"{number}/2")
    next((out / PARTS).glob(f"*/1of2.*/{name}")).unlink()
    with pytest.raises(NotFoundError, match=rf"{name}: is missing; run `pbg export ... --part 1/2`, then merge"):
        merge(data, exchange, out, 2)
    part(data, exchange, out, "1/2")
    merge(data, exchange, out, 2)
    exported(data, exchange, place / "new", 2)
    assert contents(out) == contents(place / "new")


def test_export_that_lost_a_file_is_made_again(data, place):
    out = place / "out"
    exported(data, "npy", out, 2)
    whole = contents(out)
    (out / "user" / "part-00001.npy").unlink()
    with pytest.raises(ConfigError, match=r"part 1/2 of the export of .* is missing"):
        merge(data, "npy", out, 2, overwrite=True)
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2", overwrite=True)
    merge(data, "npy", out, 2, overwrite=True)
    assert contents(out) == whole


def test_foreign_file_stays(data, place):
    out, calls = place / "out", []
    foreign = out / "item" / "part-00000.npy"
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2")

    def check():
        calls.append(1)
        if len(calls) == 2:  # after the destination was found to be free
            foreign.parent.mkdir()
            foreign.write_bytes(b"foreign")

    for words in ("part-00000.npy: another writer stored it", "it holds item/part-00000.npy"):
        with pytest.raises(ConflictError, match=words):
            merge(data, "npy", out, 2, check=check)
        assert foreign.read_bytes() == b"foreign"


def test_file_is_gone_after_cut_off_merge(data, place, monkeypatch):
    out, calls, real = place / "out", [], gathering.move

    def move(*args):
        calls.append(args)
        if len(calls) == 5:
            raise OSError("cut off")
        real(*args)

    for number in (1, 2):
        part(data, "npy", out, f"{number}/2")
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "move", move)
        patch.setattr(gathering, "_THREADS", 1)
        with pytest.raises(OSError, match="cut off"):
            merge(data, "npy", out, 2)
    waiting(out, "part-00003.npy").unlink()
    with pytest.raises(NotFoundError, match=r"part-00003\.npy: is missing"):
        merge(data, "npy", out, 2)
    part(data, "npy", out, "2/2")
    merge(data, "npy", out, 2)
    exported(data, "npy", place / "new", 2)
    assert contents(out) == contents(place / "new")


@pytest.mark.s3
def test_second_merge_leaves_export_of_first(data, s3_bucket, place, monkeypatch):
    out, real, first = f"{s3_bucket}/out", export_parts.deliver_parts, []
    export("npy", str(data.checkpoint), out, options=ExportOptions(types=("item",)))
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2", overwrite=True)

    def deliver_parts(*args, **keys):
        if not first:
            first.append(1)
            merge(data, "npy", out, 2, overwrite=True)
        return real(*args, **keys)

    monkeypatch.setattr(export_parts, "deliver_parts", deliver_parts)
    merge(data, "npy", out, 2, overwrite=True)
    exported(data, "npy", place / "new", 2)
    store = open_store(out)
    assert {info.key: store.get(info.key).data for info in store.list()} == contents(place / "new")


def test_parts_stay_for_a_merge_that_began_meanwhile(data, place, monkeypatch):
    out, real = place / "out", delivery.encode
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2")

    def encode(document):
        if isinstance(document, ExchangeManifest):  # the last check has passed
            open_store(str(out)).put(MARK, b"another writer's")
        return real(document)

    monkeypatch.setattr(delivery, "encode", encode)
    merge(data, "npy", out, 2)
    assert len(list((out / PARTS).glob("*/*of2.json"))) == 2


def test_merge_that_was_cut_off_while_removing_ends(data, place, monkeypatch):
    out, real = place / "out", LocalStore.delete

    def delete(store, key):
        if key.endswith("2of2.json"):
            raise OSError("cut off")
        real(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", delete)
        with pytest.raises(OSError, match="cut off"):
            exported(data, "npy", out, 2)
    assert waiting(out, "2of2.json").exists()
    merge(data, "npy", out, 2)
    assert not (out / PARTS).exists()


def test_merge_removes_no_parts_of_another_number(data, place):
    out = place / "out"
    part(data, "npy", out, "1/3")
    exported(data, "npy", out, 2)
    left = files(out / PARTS)
    assert len([name for name in left if "1of3." in name]) == len(left) > 1


def test_parts_left_for_a_week_are_removed(data, place, monkeypatch):
    """The record goes first; one file that is younger keeps all."""
    out, gone = place / "out", []
    delete = LocalStore.delete
    monkeypatch.setattr(LocalStore, "delete", lambda self, key: [gone.append(key), delete(self, key)])
    for text, ages in (("1/3", (8, 8)), ("1/4", (8, 6))):
        part(data, "npy", out, text)
        for at, name in enumerate(name for name in sorted(files(out / PARTS)) if f"of{text[-1]}." in name):
            stored, days = out / PARTS / name, ages[at > 0]
            os.utime(stored, (stored.stat().st_atime, stored.stat().st_mtime - days * 86_400))
    exported(data, "npy", out, 2)
    left = files(out / PARTS)
    assert len([name for name in left if "1of4." in name]) == len(left) > 1
    depths = [key.count("/") for key in gone if "1of3." in key]
    assert depths[0] < depths[1]
    assert depths == sorted(depths)
    for name in ("mine.csv", "mine/part-0.csv"):
        LocalStore(out).put_new(f"{PARTS}{name}", b"of another program")
        os.utime(out / PARTS / name, (1, 1))
    export("npy", str(data.checkpoint), str(out), overwrite=True)
    assert {*files(out / PARTS)} == {*left, "mine.csv", "mine/part-0.csv"}


def test_only_an_export_in_parts_counts_as_merged(data, place):
    out = place / "out"
    export("npy", str(data.checkpoint), str(out))
    with pytest.raises(ConfigError, match=r"part 1/9 of the export of .* is missing"):
        merge(data, "npy", out, 9, overwrite=True)


def test_export_of_other_options_does_not_count(data, place):
    out = place / "out"
    exported(data, "angel", out, 1)
    with pytest.raises(ConfigError, match=r"part 1/1 of the export of .* is missing"):
        merge(data, "angel", out, 1, options=ExportOptions(layout="TextColumn"), overwrite=True)
    assert merge(data, "angel", out, 1)["files"] == len(files(out)) - 1


KILLED = """
import os, signal, sys
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.exchange import export_parts
real, export_parts._THREADS = LocalStore.put_new, 1
def put(store, key, *args, **kwargs):
    if key.endswith(".json"):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(store, key, *args, **kwargs)
LocalStore.put_new = put
export_parts.export_part("npy", sys.argv[1], sys.argv[2], "2/3")
"""


def test_killed_part_is_run_again(data, place):
    out = place / "out"
    command = [sys.executable, "-c", KILLED, str(data.checkpoint), str(out)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len([name for name in files(out) if name.startswith(PARTS)]) == 1  # a file, and no record
    with pytest.raises(ConfigError, match="is missing"):
        merge(data, "npy", out, 3)
    exported(data, "npy", out, 3)
    exported(data, "npy", place / "new", 3)
    assert contents(out) == contents(place / "new")


@pytest.mark.s3
@pytest.mark.parametrize("standing", [False, True])
def test_parts_in_s3_equal_those_on_disk(data, place, s3_bucket, standing):
    out = f"{s3_bucket}/out"
    if standing:
        export("npy", str(data.checkpoint), out)
    for number in (1, 2):
        part(data, "npy", out, f"{number}/2", overwrite=standing)
    merge(data, "npy", out, 2, overwrite=standing)
    exported(data, "npy", place / "new", 2)
    store = open_store(out)
    assert {info.key: store.get(info.key).data for info in store.list()} == contents(place / "new")


@pytest.mark.parametrize(
    ("exchange", "options", "words"),
    [
        ("faiss", {}, "format faiss is one index a type, which shard_rows builds in bounded memory"),
        ("word2vec", {}, "format word2vec is one file a type"),
        ("safetensors", {}, "format safetensors is one file"),
        ("projector", {}, "format projector is a sample"),
        ("angel-line", {}, "format angel-line numbers the nodes of all partitions"),
        ("lancedb", {}, "sink lancedb is filled as a whole"),
        ("parquet", {"feast": "shop"}, "the option feast defines a source of one table a type"),
        ("npy", {"escape": True}, "format npy has no option 'escape'"),
    ],
)
def test_formats_of_one_file_are_refused(data, place, exchange, options, words):
    with pytest.raises(ConfigError, match=words):
        part(data, exchange, place / "out", "1/2", options=ExportOptions(**options))
    with pytest.raises(ConfigError, match=words):
        merge(data, exchange, place / "out", 2, options=ExportOptions(**options))
    assert not (place / "out").exists()


def test_command_writes_parts_and_merges(data, place):
    def run(*words):
        return CliRunner().invoke(app, ["export", "tsv", str(data.checkpoint), str(place / "out"), *words, "--escape"])

    assert "leave --part out" in run("--part", "1/2", "--parts", "2").output
    assert "'3/2' is no part" in str(run("--part", "3/2").exception)
    for words in (["--part", "1/2"], ["--part", "2/2"], ["--parts", "2"]):
        assert run(*words).exit_code == 0
    assert "user/part-00003.tsv" in files(place / "out")
