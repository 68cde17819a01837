"""Snapshots and columns at a place that no spec describes yet.

Guesses follow from names of files and columns; a wrong one is corrected in the spec that ``pbg init`` prints.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.config.graph import Columns, Snapshots
from pbg_tasks.config.nights import SNAPSHOT_KEY, snapshot_order
from pbg_tasks.config.run import SnapshotFile
from pbg_tasks.errors import ConfigError, InputError, StorageError, printable
from pbg_tasks.prepare.delimited import first_record
from pbg_tasks.prepare.kinds import begins_with_names, different_values
from pbg_tasks.prepare.snapshot import reading
from pbg_tasks.prepare.sources import snapshot_source
from pbg_tasks.prepare.text_files import COMPRESSIONS
from pbg_tasks.progress import say
from pbg_tasks.storage import is_remote, open_store
from pbg_tasks.storage.columnar import NoFilesError, list_files, list_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import duckdb

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".tab": "tsv"}
_PART = re.compile(
    r"(part|data|chunk|shard)?[-_.]?\d{1,6}([-_]of[-_]\d+|[-_][0-9a-f-]{8,}.*)?|part[-_].*", re.IGNORECASE
)
_NUMBERED = re.compile(r".*\.c?[0-9][0-9TZ_:+-]*(?=\.)")
"""Parts of a name between dots, to the last one that is a number or a day."""
_SHOWN_COLUMNS = 8
_DELTA_LOG = "_delta_log/"
_TABLE_DEPTH = 4
"""Folders above a file, and the file, that may be a table's: a partitioned one has folders of its own."""
_DELIMITERS = ("\t", ",", ";", "|", " ")
ROLES: dict[str, tuple[str, ...]] = {
    "lhs": ("lhs", "head", "source", "src", "subject", "from", "from_id", "source_id", "head_id", "h", "s", "user"),
    "rel": (
        "rel",
        "relation",
        "predicate",
        "relation_type",
        "edge_type",
        "type",
        "kind",
        "label",
        "property",
        "r",
        "p",
    ),
    "rhs": ("rhs", "tail", "target", "dst", "destination", "object", "to", "to_id", "target_id", "tail_id", "t", "o"),
    "weight": ("weight", "edge_weight", "w"),
    "lhs_type": ("lhs_type", "head_type", "source_type", "src_type", "subject_type", "from_type"),
    "rhs_type": ("rhs_type", "tail_type", "target_type", "dst_type", "object_type", "to_type"),
}
"""Usual names of the columns of an edge."""


_USUAL = Columns()


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Snapshots that a spec is drafted for.

    Attributes:
        snapshots: section of the spec.
        key: of the newest snapshot.
        keys: of all, oldest first.
        files: of the newest.
        names: of the columns of its first file.
        columns: section of the spec; the defaults until they are recognised.
        guessed: whether the first line counts as names of columns although none of them is usual.
        by_values: whether the relation is the column with the fewest values, as no name was usual.
    """

    snapshots: Snapshots
    key: str
    keys: tuple[str, ...]
    files: tuple[SnapshotFile, ...]
    names: tuple[str, ...] = ()
    columns: Columns = _USUAL
    guessed: bool = False
    by_values: bool = False

    @property
    def unread(self) -> str:
        """Names of the first columns that have no role."""
        left = [name for name in self.names if name not in self.columns.model_dump().values()]
        return printable(", ".join([*left[:_SHOWN_COLUMNS], "..."] if len(left) > _SHOWN_COLUMNS else left))


def find_snapshots(location: str) -> DraftSource:
    """Find the snapshots at a location.

    Args:
        location: with ``{snapshot}``; or a folder of snapshots, a folder that is one snapshot, or a file that is one.

    Raises:
        InputError: there are no files.
        ConfigError: it is unclear where the key of a snapshot stands, or how the files are written; or it is no place
            of files.
    """
    if "://" in location and not location.startswith(("s3://", "file://")):
        raise ConfigError(
            f"{location}: `pbg init` reads files, in s3:// or a local path: give it a day as Parquet, then name the "
            "table in `snapshots` of the spec (docs/sources.md)"
        )
    place = location if is_remote(location) else str(Path(location.removeprefix("file://")).expanduser().absolute())
    _refuse_table(place.partition("{snapshot}")[0].rstrip("/"))
    template = place if "{snapshot}" in place else _template(place.rstrip("/"))
    keys = tuple(sorted(list_keys(template), key=snapshot_order))
    if not keys:
        raise InputError(f"{template}: no snapshot there; a key has letters, digits and . _ : + - only")
    return _newest(template, keys)


def snapshot_before(source: DraftSource) -> DraftSource | None:
    """Find the snapshot before the newest one of a source.

    None without one that has files.
    """
    with suppress(InputError):
        return _newest(source.snapshots.location, source.keys[:-1])
    return None


def _newest(template: str, keys: tuple[str, ...]) -> DraftSource:
    key, listed = _newest_with_files(template, keys)
    found = [SnapshotFile(uri=uri, size=size, version=version) for uri, size, version in listed]
    files = tuple(sorted(found, key=lambda file: file.size == 0))  # columns are read from the first, which has some
    _refuse_table(files[0].uri)
    snapshots = Snapshots(location=template, format=_format(files[0].uri))
    return DraftSource(snapshots, key, keys[: keys.index(key) + 1], files)


def _newest_with_files(template: str, keys: Sequence[str]) -> tuple[str, list[tuple[str, int, str]]]:
    """Return the newest key whose place has files, and those.

    One with a file that `plan` refuses is passed over, with a warning.

    Raises:
        InputError: none has files, or only such as are refused; the error of the newest.
    """
    refused: list[InputError] = []
    for key in reversed(keys):
        try:
            return key, list_files(template.replace("{snapshot}", key))
        except NoFilesError:
            continue
        except InputError as error:
            refused.append(error)
            say(f"warning: snapshot {key} is passed over: {error}")
    if refused:
        raise refused[0]
    raise InputError(f"{template}: the folders of {', '.join(keys[-3:])} have no files")


def _refuse_table(place: str) -> None:
    """Refuse the directory of a table, and places in it.

    Raises:
        ConfigError: the place, or one of the folders that it is in, is a table of Iceberg or Delta.
    """
    for _ in range(_TABLE_DEPTH):
        if place.endswith((":/", "/", ":")) or not place:
            return
        form = _table_form(place)
        if form is not None:
            named = "iceberg://CATALOG/NAMESPACE.TABLE/{snapshot}" if form == "iceberg" else f"{place}@{{snapshot}}"
            raise ConfigError(
                f"{place}: {'an Iceberg' if form == 'iceberg' else 'a Delta'} table, not files of a snapshot; give "
                f"`pbg init` a day of it as Parquet, then change the spec: snapshots: {{location: {named!r}, format: "
                f"{form}}} (docs/sources.md)"
            )
        place = place.rpartition("/")[0]


def _table_form(place: str) -> str | None:
    """Return the format of a place's table; None without one."""
    with suppress(StorageError):  # a role may list the snapshots alone, and a file is no folder
        store = open_store(place)
        if next(store.list(_DELTA_LOG), None) is not None:
            return "delta"
        if any(info.key.endswith(".metadata.json") for info in store.list("metadata/")):
            return "iceberg"
    return None


def _template(place: str) -> str:
    """Return a place with ``{snapshot}`` in it."""
    if any(sign in place for sign in "*?["):
        raise ConfigError(
            f"{place}: write {{snapshot}} at the place of a snapshot's key, as in edges/{{snapshot}}/*.csv"
        )
    found = [uri for uri, _, _ in list_files(place, distinct=False)]
    if found == [place]:
        folder, _, name = place.rpartition("/")
        return f"{folder}/{{snapshot}}{_suffix(name)}"
    every = [uri.removeprefix(f"{place}/") for uri in found]
    # A link beside snapshots, such as "latest", is none of their names.
    below = [name for name in every if not Path(place, name.partition("/")[0]).is_symlink()] or every
    folders = sorted({name.partition("/")[0] for name in below if "/" in name}, key=snapshot_order)
    if not folders:
        suffix = _suffix(below[0])
        if not _PART.fullmatch(below[0].removesuffix(suffix)):
            return f"{place}/{{snapshot}}{suffix}"
        parent, _, key = place.rpartition("/")
        return f"{parent}/{_keyed(key)}/*{suffix}"
    newest = [name.partition("/")[2] for name in below if name.startswith(f"{folders[-1]}/")]
    suffixes = {*map(_suffix, newest)}
    files = f"/*{suffixes.pop()}" if len(suffixes) == 1 and not any("/" in name for name in newest) else ""
    return f"{place}/{_keyed(folders[-1])}{files}"


def _suffix(name: str) -> str:
    """Return the end of a name that other days share.

    It begins at the first dot after which there is no number, as of a part or a day: ``part.0.parquet`` may be beside
    ``part.1.parquet`` tomorrow, and ``edges.2026-11-20.csv`` is ``edges.2026-11-21.csv`` then.
    """
    return _NUMBERED.sub("", name.removeprefix(name.partition(".")[0]))


def _keyed(name: str) -> str:
    """Return a folder's name with ``{snapshot}``.

    In ``day=2026-11-20`` that is the part after the sign.
    """
    front, sign, _ = name.partition("=")
    if sign:
        return f"{front}={{snapshot}}"
    if not re.fullmatch(SNAPSHOT_KEY, name):
        raise ConfigError(f"{name!r} is no key of a snapshot; write {{snapshot}} at the place of the key")
    return "{snapshot}"


def _format(uri: str) -> str:
    suffixes = [suffix.lower() for suffix in Path(uri).suffixes if suffix[1:].lower() not in COMPRESSIONS]
    found = _FORMATS.get(suffixes[-1] if suffixes else "")
    if found is None:
        raise ConfigError(f"{uri}: neither {', '.join(_FORMATS)}; rename it, or write the spec by hand")
    return found


def read_columns(source: DraftSource, given: Collection[str], connection: duckdb.DuckDBPyConnection) -> DraftSource:
    """Read the columns of the files, and the form of text.

    Args:
        source: without them.
        given: names of columns that the user knows; a first line with them is a header.
        connection: for the work.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    snapshots, file = source.snapshots, source.files[0]
    place = snapshot_source(snapshots).open(connection, snapshots, [file], ())[file.uri]
    guessed = False
    if snapshots.format != "parquet":
        snapshots, first = _delimited(snapshots, file.uri, place, given)
        numbers = [f"column{number}" for number in range(len(first))]
        if not snapshots.header and not given and begins_with_names(connection, snapshots, file, numbers, first):
            snapshots, guessed = snapshots.model_copy(update={"header": True}), True
    with reading([file]):
        layout = snapshot_source(snapshots).describe(connection, snapshots, file, place)
    if layout is None:
        raise InputError(f"{file.uri}: the snapshot has no edges")
    return replace(source, snapshots=snapshots, names=tuple(layout.columns), guessed=guessed)


def _delimited(snapshots: Snapshots, uri: str, place: str, given: Collection[str]) -> tuple[Snapshots, list[str]]:
    """Return the format of text, and its first line's fields."""
    tried = [snapshots.model_copy(update={"delimiter": None, "header": False})]
    tried += [tried[0].model_copy(update={"delimiter": each}) for each in _DELIMITERS]
    firsts = [(each, first_record(each, uri, place) or []) for each in tried]
    best, first = next(((each, fields) for each, fields in firsts if len(fields) > 1), firsts[0])
    usual = sum(bool(_named(first, role)) for role in ("lhs", "rel", "rhs")) > 1
    header = all(name in first for name in given) if given else usual
    return best.model_copy(update={"header": header}), first


def _named(names: Iterable[str], role: str) -> str | None:
    """Return the column whose name is usual for a role."""
    by_name = {re.sub(r"[^a-z0-9]+", "_", name.lower().lstrip(":")).strip("_"): name for name in reversed([*names])}
    return next((by_name[usual] for usual in ROLES[role] if usual in by_name), None)


def recognise(source: DraftSource, given: dict[str, str], connection: duckdb.DuckDBPyConnection) -> DraftSource:
    """Give the columns their roles.

    Args:
        source: with the names of columns.
        given: columns by role, as the user names them.
        connection: counts the different values of columns without usual names, if need be.

    Raises:
        ConfigError: a given column is not there, or both ends cannot be recognised.
    """
    names = source.names
    if lacking := [name for name in given.values() if name not in names]:
        raise ConfigError(f"{source.files[0].uri}: no column {lacking[0]!r}; its columns are: {', '.join(names)}")
    left = [name for name in names if name not in given.values()]
    found: dict[str, str] = dict(given)
    for role in ROLES:
        if role not in found and (name := _named(left, role)) is not None:
            found[role] = name
            left.remove(name)
    guesses = {} if {"lhs", "rhs"} <= found.keys() else _by_position(source, found, connection)
    found |= guesses
    if not {"lhs", "rhs"} <= found.keys():
        raise ConfigError(
            f"{source.files[0].uri}: which of the columns {', '.join(names)} are the ends of an edge? name them with "
            "--lhs-col and --rhs-col, the relation with --rel-col"
        )
    if ("lhs_type" in found) != ("rhs_type" in found):
        found = {role: name for role, name in found.items() if not role.endswith("_type")}
    return replace(source, columns=Columns.model_validate({"rel": None} | found), by_values="rel" in guesses)


def _by_position(source: DraftSource, found: dict[str, str], connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return the ends of edges by their order.

    Of three columns, the one with the fewest different values is the relation.
    """
    left = [name for name in source.names if name not in found.values()]
    roles = {}
    if "rel" not in found and len(left) == len(("lhs", "rel", "rhs")):
        different = different_values(connection, source.snapshots, source.files[0], left)
        roles["rel"] = min(left, key=lambda name: different[name])
        left.remove(roles["rel"])
    ends = [role for role in ("lhs", "rhs") if role not in found]
    return roles | dict(zip(ends, left, strict=True)) if len(left) == len(ends) else {}
