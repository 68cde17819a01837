"""Commands on a graph's releases.

They are list, promote, roll back, redo, pin, skip, approve, reject, collect, drill and replay.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pbg_tasks.cli.common import Json, Override, Run, Spec, is_config, named_spec, number, show_result
from pbg_tasks.errors import ConfigError, QualityGateError

app = typer.Typer()
T = TypeVar("T")
MAX_PERSON = 200
"""Number of characters that documents take for a person, which are those of ``Person``."""

Reason = Annotated[str, typer.Option(help="Reason, kept with the run.", show_default=False)]
By = Annotated[
    str | None, typer.Option(help="Name of the person who decides; your login by default.", show_default=False)
]
Number = Annotated[int, typer.Argument(min=1, help="Number of the release.", show_default=False)]
Channel = Annotated[
    str | None, typer.Option(help="Name of the channel; the one that readers follow by default.", show_default=False)
]
Service = Annotated[
    str | None, typer.Option("--for", metavar="SERVICE", help="Name of the service.", show_default=False)
]

Day = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="Last day on which the service needs it.", show_default=False),
]


Place = Annotated[
    str, typer.Argument(metavar="SPEC|STORE", help="Graph spec, a YAML file, or the graph's store.", show_default=False)
]


def _place(given: str) -> Path | str:
    """Return a graph spec's path, or a store as given."""
    return named_spec(Path(given)) if is_config(given) else given


def _no_spec(given: str) -> str:
    """Return a store as given.

    Raises:
        ConfigError: it is a graph spec; the message has the store that it names.
    """
    if given and is_config(given) and Path(given).is_file():
        from pbg_tasks.config import load_graph_spec

        store = shlex.quote(load_graph_spec(Path(given)).store)
        raise ConfigError(f"{given}: a graph spec; gc takes the graph's store: `pbg gc {store}`")
    return given


@app.command()
def releases(place: Place, *, as_json: Json = False) -> None:
    """List the releases of a graph, and their readers."""
    from pbg_tasks.tasks.view.readers import releases_text
    from pbg_tasks.tasks.view.show import history

    listed = history(_place(place))
    typer.echo(json.dumps(listed) if as_json else releases_text(listed))


@app.command()
def promote(
    spec: Spec,
    release: Annotated[
        int | None,
        typer.Argument(min=1, help="Release of the channel of nights; its current one by default.", show_default=False),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Channel that has it; that of the nights by default.", show_default=False),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Channel that takes it over; `promote.to` by default.", show_default=False)
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="Share of the keys that reads it, such as 10%.", show_default=False)
    ] = None,
    by: By = None,
    *,
    stop: Annotated[bool, typer.Option("--stop", help="End a share: all readers read the channel's release.")] = False,
    due: Annotated[bool, typer.Option("--due", help="Only do what the spec's `promote` rules after a night.")] = False,
    other_space: Annotated[
        bool, typer.Option("--other-space", help="Even if its vectors cannot be compared with those being read.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let the readers' channel take over a release of another channel.

    It is one swap, and `pbg rollback` takes it back. A share of the readers, by their keys, may read it first.
    """
    from pbg_tasks.tasks.nightly import promote as task

    choices = {"RELEASE": release, "--from": source, "--share": share, "--other-space": other_space or None}
    given = [name for name, value in choices.items() if value is not None]
    if (stop or due) and given:
        raise typer.BadParameter(f"{given[0]} has no meaning with {'--stop' if stop else '--due'}; leave it out")
    if due and (stop or to is not None or by is not None):
        raise typer.BadParameter(
            f"{'--stop' if stop else '--by' if to is None else '--to'} has no meaning with --due; leave it out"
        )
    if stop:
        result = task.stop(spec, to=to, by=_person(by))
    elif due:
        result = task.promote_due(spec)
    else:
        result = task.promote(
            spec,
            release,
            by=_person(by),
            source=source,
            to=to,
            share=None if share is None else task.share_of(share),
            other_space=other_space,
        )
    show_result(result, as_json=as_json)


@app.command()
def rollback(
    place: Place,
    release: Annotated[
        int | None, typer.Argument(min=1, help="Release to go back to; the one before by default.", show_default=False)
    ] = None,
    to: Annotated[int | None, typer.Option(min=1, help="The same as RELEASE.")] = None,
    channel: Channel = None,
    by: By = None,
    *,
    as_json: Json = False,
) -> None:
    """Point the channel back to an earlier release."""
    from pbg_tasks.tasks.release.releases import rollback as task

    number = _one(release, to, "--to", "RELEASE")
    show_result(task(_place(place), to=number, channel=channel, by=_person(by)), as_json=as_json)


def _person(given: str | None, flag: str = "--by") -> str:
    """Return the name that an option has, or that of the login.

    A process may run under a number that has no name.
    """
    if given:
        if len(given) > MAX_PERSON:
            raise typer.BadParameter(f"{flag}: has {len(given)} characters; a name has at most {MAX_PERSON}")
        return given
    try:
        return getpass.getuser()[:MAX_PERSON]
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _one(argument: T | None, option: T | None, flag: str, name: str) -> T | None:
    """Return an argument that may also be given as an option."""
    if argument is not None and option is not None:
        raise typer.BadParameter(f"{flag}: is {name}, which is given too; leave one of them out")
    return option if argument is None else argument


@app.command()
def redo(
    spec: Spec,
    first: Annotated[
        str | None, typer.Argument(metavar="SNAPSHOT", help="Key of the corrected snapshot.", show_default=False)
    ] = None,
    keyed: Annotated[str | None, typer.Option("--from", help="The same as SNAPSHOT.", show_default=False)] = None,
    param: Override = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the days.")] = False,
    as_json: Json = False,
) -> None:
    """Repeat a day of a chain and the released days after it."""
    from pbg_tasks.tasks.release.redo import redo as task

    day = _one(first, keyed, "--from", "SNAPSHOT")
    if day is None:
        raise typer.BadParameter("SNAPSHOT is missing: the corrected day from which on the chain is repeated")
    show_result(task(spec, day, overrides=param, dry_run=dry_run), as_json=as_json)


@app.command()
def pin(
    spec: Spec,
    release: Number,
    service: Service = None,
    owner: Annotated[
        str | None,
        typer.Option(help="Person or team responsible for the service; your login by default.", show_default=False),
    ] = None,
    until: Day = None,
    channel: Channel = None,
    *,
    as_json: Json = False,
) -> None:
    """Keep a release until it is unpinned; let a service read it."""
    from pbg_tasks.tasks.release.releases import pin as task

    owner = _person(owner, "--owner") if owner or service is not None else None
    day = until.date() if until is not None else None
    show_result(task(spec, release, service=service, owner=owner, until=day, channel=channel), as_json=as_json)


@app.command()
def unpin(
    spec: Spec,
    release: Annotated[int | None, typer.Argument(min=1, help="Number of the release.", show_default=False)] = None,
    service: Service = None,
    channel: Channel = None,
    *,
    as_json: Json = False,
) -> None:
    """Remove the pin of a release, or of a service."""
    from pbg_tasks.tasks.release.releases import unpin as task

    show_result(task(spec, release, service=service, channel=channel), as_json=as_json)


@app.command()
def skip(
    spec: Spec,
    snapshot: Annotated[str, typer.Argument(help="Key of the snapshot.", show_default=False)],
    reason: Annotated[str | None, typer.Option(help="Reason, kept with the skip.", show_default=False)] = None,
    *,
    as_json: Json = False,
) -> None:
    """Let the nights of a chain go on without a snapshot."""
    from pbg_tasks.tasks.release.releases import skip as task

    show_result(task(spec, snapshot, reason=reason), as_json=as_json)


@app.command()
def approve(run: Run, reason: Reason, by: By = None, *, as_json: Json = False) -> None:
    """Let a night go on that a gate refused.

    Its release records the person and the reason.
    """
    from pbg_tasks.tasks.approval import approve as task

    show_result(task(run, by=_person(by), reason=reason), as_json=as_json)


@app.command()
def reject(run: Run, reason: Reason, by: By = None, *, as_json: Json = False) -> None:
    """Confirm the end of a night that a gate refused.

    It cannot be approved any more.
    """
    from pbg_tasks.tasks.approval import reject as task

    show_result(task(run, by=_person(by), reason=reason), as_json=as_json)


@app.command()
def drill(
    spec: Spec,
    limit: Annotated[float, typer.Option(min=0, help="Seconds that each way may take.")] = 5.0,
    *,
    as_json: Json = False,
) -> None:
    """Roll a canary channel back and forward; fail when that is slow."""
    from pbg_tasks.tasks.release.releases import drill as task

    show_result(task(spec, limit=limit), as_json=as_json)


@app.command()
def gc(
    store: Annotated[str, typer.Argument(help="Root of the graph's store.", show_default=False, callback=_no_spec)],
    channel: Annotated[
        list[str] | None,
        typer.Option(help="Only releases and runs of this channel go; may be repeated.", show_default=False),
    ] = None,
    keep_releases: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of the newest snapshots whose releases stay; 14 when --keep-days is not given either."
        ),
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0, help="Number of days for which a release stays.", callback=number)
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0, help="Hours for which whatever was written or used stays; 0 only when nothing runs.", callback=number
        ),
    ] = 72.0,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would go.")] = False,
    trust_clock: Annotated[
        bool,
        typer.Option("--trust-clock", help="In a directory, count by dates: all its writers' clocks are right."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the releases and runs that nothing needs."""
    from pbg_tasks.tasks.release.releases import gc as task

    result = task(
        store,
        channel=channel,
        keep_releases=keep_releases,
        keep_days=keep_days,
        grace_hours=grace,
        dry_run=dry_run,
        trust_clock=trust_clock,
    )
    show_result(result, as_json=as_json)


@app.command()
def replay(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SPEC",
            help="URL of the released run, or of its directory; or, with RELEASE, the graph spec.",
            show_default=False,
        ),
    ],
    release: Annotated[
        int | None, typer.Argument(min=1, help="Number of the release in the channel of nights.", show_default=False)
    ] = None,
    numbered: Annotated[
        int | None, typer.Option("--release", min=1, help="The same as RELEASE.", show_default=False)
    ] = None,
    into: Annotated[
        str | None, typer.Option(help="Store for the new files; else they are removed.", show_default=False)
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Make a release once more and compare its files.

    Every file is compared with the published one.
    """
    from pbg_tasks.tasks.release.replay import replay as task
    from pbg_tasks.tasks.release.replay import replay_release

    number = _one(release, numbered, "--release", "RELEASE")
    result = task(run, into=into) if number is None else replay_release(Path(run), number, into=into)
    show_result(result, as_json=as_json)
    if not result["equal"]:
        unequal = [name for name, verdict in result["files"].items() if verdict != "equal"]
        raise QualityGateError(f"{result['run']}: not the same bytes: {', '.join(unequal)}")
