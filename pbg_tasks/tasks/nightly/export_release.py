"""``export-release``: one export that a run's spec lists.

The run has to be the channel's release.
"""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.config.exports import no_parts
from pbg_tasks.config.results import ExportFindings, ExportResult, PublishResult, Result
from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.announcing import is_announced
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.export_parts import export_part, merge_parts
from pbg_tasks.tasks.exchange.fill import fill
from pbg_tasks.tasks.exchange.serving import following

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.config.exports import Export
    from pbg_tasks.publish import Release


def export_release(url: str, name: str, parts: int | None = None) -> Result:
    """Write one export, in place of what an interrupted try left.

    Args:
        url: of the run.
        name: of the export in the spec.
        parts: number of parts that wrote its files; None: they are written here.

    Returns:
        Its destination, and whether it was announced (``announced``).

    Raises:
        ConfigError: the spec lists no such export, it cannot be in parts, the run was not published, or a part is
            missing.
        ConflictError: the snapshot was published again since, and exported to the same place.
    """
    run, chosen = RunContext.open(url), _chosen(url, name, in_parts=parts is not None)
    done = perform(ExportResult, url, partial(_export, chosen=chosen, parts=parts), task=chosen.task)
    return done.document() | {"announced": is_announced(run.store, run.run_id, chosen.task)}


def export_release_part(url: str, name: str, part: str) -> Result:
    """Write the files of one part of an export; raises as ``export_release``.

    Args:
        url: of the run.
        name: of the export in the spec.
        part: ``i/n``.
    """
    chosen = _chosen(url, name, in_parts=True)
    return perform(
        ExportResult, url, partial(_export_part, chosen=chosen, part=part), task=chosen.part_task(part)
    ).document()


def _chosen(url: str, name: str, *, in_parts: bool) -> Export:
    listed = {export.name: export for export in RunContext.open(url).spec.graph.exports}
    if name not in listed:
        raise ConfigError(f"{url}: its spec lists no export {name!r}; it lists {', '.join(listed) or 'none'}")
    if in_parts and (reason := no_parts(listed[name].format, listed[name])) is not None:
        raise ConfigError(f"{url}: export {name}: {reason}")
    return listed[name]


def _export(run: RunContext, *, chosen: Export, parts: int | None) -> ExportFindings:
    published, destination = _published(run), _destination(run, chosen)

    def check() -> None:
        if chosen.shared:
            _check_not_redone(run, published.release, destination)

    if chosen.is_sink:
        return _fill(run, chosen, destination)
    check()
    source = _source(run)
    if parts is None and chosen.parts == 1:
        tags = {"channel": run.spec.graph.channel, "release": str(published.release)}
        done = export(chosen.format, source, destination, options=chosen, overwrite=True, tags=tags, check=check)
        return _findings(done)
    if parts is None:  # the same files, all written here
        export_part(chosen.format, source, destination, "1/1", options=chosen, overwrite=True)
    command = f"pbg export-release {run.url} {chosen.name}"
    done = merge_parts(
        chosen.format,
        source,
        destination,
        parts or 1,
        options=chosen,
        overwrite=True,
        check=check,
        again=lambda part: f"`{command} --part {part}` (remove results/{chosen.part_task(part)}.json of the run first)",
    )
    return _findings(done)


def _export_part(run: RunContext, *, chosen: Export, part: str) -> ExportFindings:
    published, destination = _published(run), _destination(run, chosen)
    if chosen.shared:
        _check_not_redone(run, published.release, destination)
    return _findings(export_part(chosen.format, _source(run), destination, part, options=chosen, overwrite=True))


def _published(run: RunContext) -> PublishResult:
    published = run.need(PublishResult)
    if not published.published:
        raise ConfigError(f"{run.url}: was not published ({published.reason}), so it is not exported")
    return published


def _source(run: RunContext) -> str:
    return f"{run.store.url}/{run.key(RunLayout.release)}"


def _fill(run: RunContext, chosen: Export, destination: str) -> ExportFindings:
    """Fill tables, which are served if the channel serves the run."""
    done = fill(
        chosen.format,
        _source(run),
        destination,
        options=chosen,
        collection=run.spec.graph.collection,
        serving=following(run.spec.graph, run.run_id),
    )
    if not done["measured"]["served"]:
        say(f"export {chosen.name}: the channel serves another release, so aliases do not point to these tables")
    return _findings(done)


def _findings(done: Mapping[str, object]) -> ExportFindings:
    return ExportFindings.model_validate({key: value for key, value in done.items() if key not in {"task", "seconds"}})


def _destination(run: RunContext, chosen: Export) -> str:
    return chosen.resolve(run.spec.graph.store, run=run.run_id, snapshot=run.spec.snapshot)


def _check_not_redone(run: RunContext, number: int, destination: str) -> None:
    """Refuse to replace the export of a redo of the snapshot.

    A redo may export to the same place. The refusal does not apply while the channel serves this run's release; that it
    serves a later snapshot is no reason to refuse, because exports may be late.
    """
    channel = Channel(run.store, run.spec.graph.channel)
    there = channel.current().release
    if there is not None and there.seq == number:
        return
    later = takewhile(lambda release: release.seq > number, channel.releases(newest_first=True))
    again = (release for release in later if release.snapshot == run.spec.snapshot)
    if (redo := next((release for release in again if _exports_to(run, release, destination)), None)) is not None:
        raise ConflictError(
            f"{run.url}: snapshot {run.spec.snapshot!r} was published again as release {redo.seq} ({redo.run}), whose "
            f"export belongs at {destination}: export that run, or give the destination a {{run}}"
        )


def _exports_to(run: RunContext, release: Release, destination: str) -> bool:
    try:
        other = RunContext.within(run.store, release.run)
    except ConfigError:
        return False  # not the run of a night, but for example the same vectors in other partitions
    published = other.find(PublishResult)
    if published is None or not published.published:
        return False
    return destination in {_destination(other, export) for export in other.spec.graph.exports}
