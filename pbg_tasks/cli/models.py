"""``pbg train`` and ``pbg eval``, for runs and for PBG configs.

A run is one of the nightly chain, a PBG config names a data set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbg_tasks.cli.common import Json, Override, finite, flag, is_config, refuse, show_result

if TYPE_CHECKING:
    from pbg_tasks.config import ConfigSchema

app = typer.Typer()

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CONFIG",
        help="A run's URL, as `pbg plan` prints it, or a PBG config (.py, .json, .yaml; local or s3://).",
        show_default=False,
    ),
]
IgnoreMemory = Annotated[bool, typer.Option("--ignore-memory", help="Train even if memory is forecast to run out.")]
Engine = Annotated[
    Literal["auto", "torch", "native"] | None,
    typer.Option(help="Engine that computes; auto is the fastest that can (config only).", show_default="auto"),
]
Device = Annotated[
    Literal["cpu", "cuda", "auto"] | None,
    typer.Option(help="Device that computes; auto: a GPU if there is one (config only).", show_default="cpu"),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Decides every random choice (config only).", show_default="0")]


def _given(**options: object) -> dict[str, Any]:
    """Return the options that were set; the tasks have the defaults."""
    return {name: value for name, value in options.items() if not (value is None or value is False or value == [])}


def _check_planned(target: str, given: dict[str, Any]) -> None:
    """Refuse options for a run, whose spec was fixed by planning."""
    refuse(f"only for a PBG config; {target} is a run, planned with its spec", **given)


@app.command()
def train(
    target: Target,
    param: Override = None,
    seed: Seed = None,
    engine: Engine = None,
    device: Device = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Train with this number of processes on this machine.", show_default=False)
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="With --ranks: how often to start again when a process is lost.")
    ] = 0,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of this machine among the config's num_machines (as in PBG).", show_default=False
        ),
    ] = None,
    *,
    ignore_memory: IgnoreMemory = False,
    as_json: Json = False,
) -> None:
    """Train to the end, from the last committed epoch.

    Variables of the environment may make this process one rank of a gang.
    """
    given = _given(seed=seed, engine=engine, device=device)
    if not is_config(target):
        _check_planned(target, {**_given(param=param), **given})
    if ranks is not None:
        if rank is not None:
            raise typer.BadParameter("--rank: not with --ranks, which gives each process its own")
        arguments = [f"--param={each}" for each in param or ()]
        arguments += [f"{flag(name)}={value}" for name, value in given.items()]
        arguments += ["--ignore-memory"] if ignore_memory else []
        _launch(target, arguments, param, ranks, max_restarts, as_json=as_json)
        return
    if max_restarts:
        raise typer.BadParameter("--max-restarts: only with --ranks")
    from pbg_tasks.tasks.training.eviction import Notice

    with Notice.taken(ends=True) as notice:  # it holds also while torch is imported and inputs are read
        with notice.held():
            from pbg_tasks.tasks.training import train as task
        if is_config(target):
            from pbg_tasks.tasks.directory.configs import load_config_from

            config = load_config_from(target, param or ())
            result = task.train_directory(config, **given, rank=rank, ignore_memory=ignore_memory)
        else:
            result = task.train(target, rank=rank, ignore_memory=ignore_memory)
    show_result(result, as_json=as_json)


def _launch(
    target: str, arguments: list[str], param: list[str] | None, ranks: int, max_restarts: int, *, as_json: bool
) -> None:
    from pbg_tasks.tasks.training.launch import launch

    config = _config(target, param)
    servers = max(config.num_partition_servers, 0)
    command = ["train", target, "--json", *arguments]
    found = launch(command, ranks=ranks, servers=servers, max_restarts=max_restarts, encrypted=config.rank_tls)
    show_result(found, as_json=as_json)


def _config(target: str, param: list[str] | None) -> ConfigSchema:
    if is_config(target):
        from pbg_tasks.tasks.directory.configs import load_config_from

        return load_config_from(target, param or ())
    from pbg_tasks.tasks.context import RunContext

    return RunContext.open(target).config


@app.command(name="partition-server")
def partition_server(
    target: Target,
    rank: Annotated[int, typer.Option(min=0, help="Number of this server among the config's num_partition_servers.")],
    param: Override = None,
    seed: Seed = None,
    *,
    ignore_memory: IgnoreMemory = False,
    as_json: Json = False,
) -> None:
    """Keep partitions in memory for ranks, until their training ends.

    See num_partition_servers.
    """
    config = _config(target, param)
    if rank >= config.num_partition_servers:
        raise typer.BadParameter(f"--rank: num_partition_servers is {config.num_partition_servers}")
    server = config.num_machines + rank
    train(target, param, seed, rank=server, ignore_memory=ignore_memory, as_json=as_json)


@app.command(name="eval")
def evaluate(
    target: Target,
    param: Override = None,
    known: Annotated[
        list[str] | None,
        typer.Option(help="Edge path of edges known to be true, for the filtered figures; may be repeated."),
    ] = None,
    negatives: Annotated[
        Literal["all", "config"] | None,
        typer.Option(
            help="Rank against all entities, or against the negatives of the config as PBG does (config only).",
            show_default="all",
        ),
    ] = None,
    max_candidates: Annotated[
        int | None,
        typer.Option(min=1, help="Draw this many entities of a larger type (config only).", show_default="1000000"),
    ] = None,
    device: Device = None,
    memory_gb: Annotated[
        float | None,
        typer.Option(min=0.1, help="Memory for queries and scores (config only).", show_default="4.0", callback=finite),
    ] = None,
    seed: Seed = None,
    part: Annotated[
        str | None,
        typer.Option(help="i/n: only count candidates, of every n-th partition (run only).", show_default=False),
    ] = None,
    parts: Annotated[
        int | None, typer.Option(min=1, help="Add the counts of so many parts (run only).", show_default=False)
    ] = None,
    *,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="Also give figures without candidates known to be right.")
    ] = False,
    exclude_self: Annotated[
        bool,
        typer.Option("--exclude-self", help="With --filtered: leave the known end out too, but where loops are true."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Rank held-out edges against all entities.

    For a config, they are those of its edge_paths.
    """
    given = _given(
        filtered=filtered,
        known=known,
        exclude_self=exclude_self,
        negatives=negatives,
        max_candidates=max_candidates,
        device=device,
        memory_gb=memory_gb,
        seed=seed,
    )
    if not is_config(target):
        from pbg_tasks.tasks.nightly.evaluate import count_part
        from pbg_tasks.tasks.nightly.evaluate import evaluate as task

        _check_planned(target, {**_given(param=param), **given})
        if part is not None and parts is not None:
            raise typer.BadParameter("--parts: merges what all parts have counted; leave --part out")
        show_result(task(target, parts) if part is None else count_part(target, part), as_json=as_json)
        return
    if part is not None or parts is not None:
        raise typer.BadParameter("--part and --parts: are for runs; a PBG config is evaluated as a whole")
    if negatives == "config":
        refuse("only with --negatives all", max_candidates=max_candidates, device=device, memory_gb=memory_gb)
    from pbg_tasks.tasks.directory.configs import load_config_from
    from pbg_tasks.tasks.directory.evaluate import evaluate_directory

    show_result(evaluate_directory(load_config_from(target, param or ()), **given), as_json=as_json)
