"""Parts of an export, and their merge.

Each part downloads its own partitions and writes a file for each. The files wait below ``_parts/{version}_{n}/`` at the
destination, where no reader looks, and the part's record comes last: a part that was killed has none and is run again.
The merge gives all files their names, which does not move their bytes through this process, and then stores the
manifest, so that a reader finds the whole export or none.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import decode, encode, find_document, sha256
from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, NotFoundError
from pbg_tasks.evaluate.counts import Share
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.exchange import ExchangeManifest, Outbox, TypeRecord, join_pieces, part_writer
from pbg_tasks.publish.exchange.manifest import PARTS, PartRecord
from pbg_tasks.storage import FinalFile, LocalStore, open_store, tidy
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.storage.uploads import end_old_uploads
from pbg_tasks.tasks.exchange.delivery import check_free, object_record, records_of
from pbg_tasks.tasks.exchange.export import DEFAULTS, result_of
from pbg_tasks.tasks.exchange.gathering import deliver_parts, is_whole, standing
from pbg_tasks.tasks.exchange.opened import describe, finder, identity, load_contents, named_in_store
from pbg_tasks.tasks.model_source import load_newest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import JsonValue

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.storage import Store
    from pbg_tasks.storage.base import ObjectInfo
    from pbg_tasks.tasks.exchange.export import ExportedFiles, ExportedPart
    from pbg_tasks.tasks.model_source import Source

_THREADS = 4
_SHOWN = 12  # characters of a version's hash in keys


def export_part(
    exchange: str,
    source: str | ConfigSchema,
    destination: str,
    part: str,
    *,
    channel: str | None = None,
    entity_path: str | None = None,
    options: ExportOptions = DEFAULTS,
    overwrite: bool = False,
) -> ExportedPart:
    """Write the files of one part of an export.

    Args:
        exchange: name of the format.
        source: as for ``export``.
        destination: as for ``export``.
        part: ``i/n``.
        channel: as for ``export``.
        entity_path: as for ``export``.
        options: of the format.
        overwrite: whether the merge will replace an export that is there, and this part one of other options.

    Raises:
        ConfigError: there is no such part, or the format has none.
        ConflictError: something is at the destination, such as this part or another one of another format.
        NotFoundError: there is no checkpoint.
        FormatError: a file is damaged, or a name cannot be written.
    """
    started, share = time.monotonic(), Share.parse(part)
    write, store = part_writer(exchange, options), open_store(destination)
    check_free(store, overwrite=overwrite)
    with Scratch() as scratch:
        find = finder(source, scratch.path, channel, entity_path)
        found = find()
        parts = _Parts(store, found, share.parts)
        before = parts.find(share)
        if before is not None and _alike(before[0], exchange, options):
            if _has_files(store, before[0]):
                say(f"export {exchange}: part {share} was stored before, nothing to do")
                return _result(before[0], store, started)
            say(f"export {exchange}: part {share} was stored before, but its files are gone; it is written again")
        elif before is not None and not overwrite:
            raise ConflictError(_unlike(store, before[0], exchange, options))
        elif before is None and not overwrite:
            beside = parts.another()
            if beside is not None and not _alike(beside, exchange, options):
                raise ConflictError(_unlike(store, beside, exchange, options))
        progress = Progress(f"export {exchange}, part {share}", unit="rows")
        load = partial(load_contents, scratch=scratch.path, types=options.types, on_rows=progress.advance, share=share)
        found, contents = load_newest(find, load)
        parts, outbox = _Parts(store, found, share.parts), Outbox(scratch.path / "outbox")
        progress.total = contents.rows
        with progress, named_in_store(found, scratch.path), disk_errors(scratch.path):
            measured = write(contents, outbox, first=share.number == 1)
        folder = parts.folder(share)
        objects = records_of(outbox)
        pieces = {name: object_record(path) for name, path in outbox.pieces.items()}
        paths = outbox.files | outbox.pieces
        in_parallel(lambda name: store.put_new(f"{folder}{name}", FinalFile(paths[name])), paths, _THREADS)
        record = PartRecord(
            part=part,
            exchange=exchange,
            source=describe(found),
            options=_document(options),
            folder=folder,
            types=outbox.types,
            comparator=contents.config.comparator,
            relations=len(contents.relations),
            measured=measured,
            objects=objects,
            pieces=pieces,
        )
    stored = parts.store_record(share, record, before)
    if not _alike(stored, exchange, options):
        raise ConflictError(_unlike(store, stored, exchange, options))
    say(f"export {exchange}: part {share} is stored after {human_seconds(time.monotonic() - started)}")
    return _result(stored, store, started)


def merge_parts(
    exchange: str,
    source: str | ConfigSchema,
    destination: str,
    parts: int,
    *,
    channel: str | None = None,
    entity_path: str | None = None,
    options: ExportOptions = DEFAULTS,
    overwrite: bool = False,
    check: Callable[[], None] = lambda: None,
    again: Callable[[str], str] = "`pbg export ... --part {}`".format,
) -> ExportedFiles:
    """Make an export of its parts.

    A second merge of the same parts finds that it is done.

    Args:
        exchange: name of the format.
        source: as for ``export``.
        destination: as for ``export``.
        parts: their number.
        channel: as for ``export``.
        entity_path: as for ``export``.
        options: of the format.
        overwrite: whether an export that is there is replaced.
        check: as for ``deliver``.
        again: returns what makes a part that is missing, for messages.

    Raises:
        ConfigError: a part is missing, or the format has none.
        ConflictError: something is at the destination, or a part has another format or other options.
        NotFoundError: there is no checkpoint, or a file of a part is missing.
        FormatError: a part's record is damaged.
    """
    started, store = time.monotonic(), open_store(destination)
    part_writer(exchange, options)  # refuses what cannot be in parts
    with Scratch() as scratch:
        found = finder(source, scratch.path, channel, entity_path)()
    stored, there = _Parts(store, found, parts), standing(store)
    records = [stored.find(Share(number, parts)) for number in range(1, parts + 1)]
    records_there = [record[0] for record in records if record is not None]
    for record in records_there:
        if not _alike(record, exchange, options):
            raise ConflictError(_unlike(store, record, exchange, options))
    if len(records_there) < parts:
        if there is not None and _is_done(there, found, exchange, options) and is_whole(store, there):
            stored.remove()  # what a merge that was cut off left
            say(f"export {exchange}: {store.url} was completed before, nothing to do")
            return _summary(found, store, there, started)
        missing = Share(records.index(None) + 1, parts)
        raise ConfigError(
            f"{store.url}: part {missing} of the export of {found.checkpoint.url} is missing{stored.others(missing)}; "
            f"run {again(str(missing))}, then merge"
        )
    part_of = {name: record.part for record in records_there for name in (*record.objects, *record.pieces)}

    def rerun(name: str) -> str:
        return f"run {again(part_of[name])}, then merge"

    joined = _joined(store, records_there, again)
    manifest = _manifest(records_there, joined, found, exchange, options)
    may_remove = True
    if not is_whole(store, manifest):
        check_free(store, overwrite=overwrite)
        keys = {name: f"{record.folder}{name}" for record in records_there for name in record.objects}
        keys |= stored.put(joined)
        may_remove = deliver_parts(store, manifest, keys, overwrite=overwrite, check=check, again=rerun)
    if may_remove:
        stored.remove()
    say(f"export {exchange}: {store.url} is complete after {human_seconds(time.monotonic() - started)}")
    return _summary(found, store, manifest, started)


class _Parts:
    """Parts of one version's export at a destination.

    Args:
        store: rooted at the destination.
        source: the version.
        parts: their number.
    """

    def __init__(self, store: Store, source: Source, parts: int) -> None:
        self._store, self._parts = store, parts
        self._prefix = f"{PARTS}{identity(source)[:_SHOWN]}_{parts}/"

    def folder(self, share: Share) -> str:
        """Return the key of a new folder for a part's files."""
        return f"{self._prefix}{share.number}of{share.parts}.{secrets.token_hex(8)}/"

    def find(self, share: Share) -> tuple[PartRecord, ObjectInfo] | None:
        """Return the record of a part, if it was stored."""
        return find_document(PartRecord, self._store, self._key(share))

    def another(self) -> PartRecord | None:
        """Return the record of one stored part, if there is any.

        It refuses a part of another format before the work. Parts that are written at the same time do not find each
        other: the merge refuses those.
        """
        for info in self._store.list(self._prefix):
            if info.key.endswith(f"of{self._parts}.json") and "/" not in info.key.removeprefix(self._prefix):
                with suppress(NotFoundError):  # a merge removed it a moment ago
                    return decode(PartRecord, self._store.get(info.key).data, source=f"{self._store.url}/{info.key}")
        return None

    def store_record(
        self, share: Share, record: PartRecord, before: tuple[PartRecord, ObjectInfo] | None
    ) -> PartRecord:
        """Store the record of a part; return the one that is stored.

        It replaces the one before, unless that is of a version which was replaced since. Where another process was
        first, the files of this part are removed.
        """
        key = self._key(share)
        replaced = before[1] if before is not None and before[0].folder.startswith(self._prefix) else None
        try:
            info = self._store.swap(key, encode(record), expected=replaced)
        except ConflictError:
            first = self.find(share)
            if first is None:
                raise
            self._delete(record.folder)
            say(f"export {record.exchange}: part {share} was stored by another process meanwhile")
            return first[0]
        end_old_uploads(self._store, self._prefix.rstrip("/"), written=info.key)
        tidy(self._store)
        return record

    def put(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Store files that were joined; return their keys."""
        folder = f"{self._prefix}joined.{secrets.token_hex(8)}/"
        for name, data in files.items():
            self._store.put_new(f"{folder}{name}", data)
        return {name: f"{folder}{name}" for name in files}

    def others(self, share: Share) -> str:
        """Return a note on the part of another version; empty without one."""
        ending = f"/{share.number}of{share.parts}.json"
        for info in self._store.list(PARTS):
            if info.key.endswith(ending) and not info.key.startswith(self._prefix):
                other = decode(PartRecord, self._store.get(info.key).data, source=f"{self._store.url}/{info.key}")
                return (
                    f" (there is one of {other.source.url}, version {other.source.version}, which is another version "
                    "than this merge reads: name the release's directory as SOURCE, so that all parts read one)"
                )
        return ""

    def remove(self) -> None:
        """Remove the records, and then what is left of files."""
        for number in range(1, self._parts + 1):
            self._store.delete(self._key(Share(number, self._parts)))
        self._delete(self._prefix)
        if isinstance(self._store, LocalStore):
            _remove_empty(Path(self._store.url) / PARTS)
        tidy(self._store)

    def _delete(self, prefix: str) -> None:
        in_parallel(self._store.delete, [info.key for info in self._store.list(prefix)], _THREADS)

    def _key(self, share: Share) -> str:
        return f"{self._prefix}{share.number}of{share.parts}.json"


def _remove_empty(folder: Path) -> None:
    """Remove the folders below a folder, and itself, that hold no file."""
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # it holds files of other parts
            Path(place).rmdir()


def _has_files(store: Store, record: PartRecord) -> bool:
    """Return whether the files of a part wait for the merge."""
    names = (*record.objects, *record.pieces)
    return all(in_parallel(lambda name: store.head(f"{record.folder}{name}") is not None, names, _THREADS))


def _joined(store: Store, records: list[PartRecord], again: Callable[[str], str]) -> dict[str, bytes]:
    """Return the files of which parts have pieces, by name."""
    found: dict[str, list[bytes]] = {}
    for record in records:
        for name, piece in record.pieces.items():
            key = f"{record.folder}{name}"
            try:
                data = store.get(key).data
            except NotFoundError:
                raise NotFoundError(f"{store.url}/{key}: is missing; run {again(record.part)}, then merge") from None
            if sha256(data) != piece.sha256:
                raise FormatError(f"{store.url}/{key}: was changed; remove it and run the part again")
            found.setdefault(name, []).append(data)
    exchange = records[0].exchange
    return {name: join_pieces(exchange, pieces, f"{store.url}/{name}") for name, pieces in found.items()}


def _manifest(
    records: list[PartRecord], joined: Mapping[str, bytes], found: Source, exchange: str, options: ExportOptions
) -> ExchangeManifest:
    """Return the manifest, the same for any number of parts."""
    types = {}
    for name in records[0].types:
        own = [record.types[name] for record in records]
        # Files of one folder are in the order of partitions, whatever the number of parts.
        files = tuple(sorted((file for each in own for file in each.files), key=lambda file: file.rpartition("/")[0]))
        types[name] = TypeRecord(rows=sum(each.rows for each in own), dimension=own[0].dimension, files=files)
    objects = {name: record for each in records for name, record in each.objects.items()}
    objects |= {name: ObjectRecord(sha256=sha256(data), size=len(data)) for name, data in joined.items()}
    return ExchangeManifest(
        exchange=exchange,
        source=describe(found),
        types=types,
        names=_names(options),
        parted=_document(options),
        comparator=records[0].comparator,
        relations=records[0].relations,
        measured=records[0].measured,
        objects=dict(sorted(objects.items())),
    )


def _names(options: ExportOptions) -> Literal["plain", "percent-encoded"]:
    return "percent-encoded" if options.escape else "plain"


def _document(options: ExportOptions) -> dict[str, JsonValue]:
    """Return the options of a format that differ from their defaults."""
    fields = ExportOptions.model_fields
    written = options.model_dump(mode="json", include=set(fields))
    changed = {name: written[name] for name in written if getattr(options, name) != fields[name].default}
    return changed | ({"types": sorted(options.types)} if options.types else {})


def _alike(record: PartRecord, exchange: str, options: ExportOptions) -> bool:
    return (record.exchange, record.options) == (exchange, _document(options))


def _unlike(store: Store, record: PartRecord, exchange: str, options: ExportOptions) -> str:
    return (
        f"{store.url}: part {record.part} is an export to {record.exchange} with options {record.options}, and this "
        f"one is to {exchange} with options {_document(options)}; export all parts alike: run `pbg export ... --part "
        f"{record.part} --overwrite`, or name another place"
    )


def _is_done(there: ExchangeManifest, found: Source, exchange: str, options: ExportOptions) -> bool:
    """Return whether an export is what the parts would make."""
    return (there.exchange, there.source, there.parted) == (exchange, describe(found), _document(options))


def _result(record: PartRecord, store: Store, started: float) -> ExportedPart:
    result = result_of(record.exchange, record.source.url, record.source.version, store, record, started)
    return {**result, "part": record.part}


def _summary(found: Source, store: Store, manifest: ExchangeManifest, started: float) -> ExportedFiles:
    return result_of(manifest.exchange, found.checkpoint.url, found.version, store, manifest, started)
