"""``pbg train`` and ``pbg eval``: of a run of the nightly chain, or of the data set a PBG config names."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pbg_tasks.cli.common import Json, Override, is_config, show_result

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
    Literal["auto", "torch", "native"], typer.Option(help="Who computes; auto is the fastest that can (config only).")
]
Device = Annotated[
    Literal["cpu", "cuda", "auto"], typer.Option(help="Where it computes; auto: a GPU if there is one (config only).")
]
Seed = Annotated[int, typer.Option(min=0, help="Decides every random choice (config only).")]


def _only_config(target: str, **options: object) -> None:
    """A run's spec was fixed when it was planned, so nothing about it can be said again."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: only for a PBG config; {target} is a run, planned with its spec")


@app.command()
def train(
    target: Target,
    param: Override = None,
    seed: Seed = 0,
    engine: Engine = "auto",
    device: Device = "cpu",
    *,
    ignore_memory: IgnoreMemory = False,
    as_json: Json = False,
) -> None:
    """Train to the end, from the last committed epoch."""
    if not is_config(target):
        from pbg_tasks.tasks.train import train as task

        given = {"engine": engine if engine != "auto" else None, "device": device if device != "cpu" else None}
        _only_config(target, param=param, seed=seed, **given)
        show_result(task(target, ignore_memory=ignore_memory), as_json=as_json)
        return
    from pbg_tasks.tasks.configs import load_config_from
    from pbg_tasks.tasks.train import train_directory

    config = load_config_from(target, param or ())
    result = train_directory(config, seed=seed, engine=engine, device=device, ignore_memory=ignore_memory)
    show_result(result, as_json=as_json)


@app.command(name="eval")
def evaluate(
    target: Target,
    param: Override = None,
    known: Annotated[
        list[str] | None,
        typer.Option(help="Edge path of edges known to be true, for the filtered figures; may be repeated."),
    ] = None,
    negatives: Annotated[
        Literal["all", "config"],
        typer.Option(help="Rank against all entities, or against the negatives of the config as PBG does."),
    ] = "all",
    max_candidates: Annotated[int, typer.Option(min=1, help="Draw this many entities of a larger type.")] = 1_000_000,
    memory_gb: Annotated[float, typer.Option(min=0.1, help="Memory for queries and scores.")] = 4.0,
    seed: Seed = 0,
    *,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="Also give figures without candidates known to be right.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rank held-out edges (of a config: those of its edge_paths) against all entities."""
    if not is_config(target):
        from pbg_tasks.tasks.evaluate import evaluate as task

        _only_config(target, param=param, known=known, seed=seed, filtered=filtered)
        show_result(task(target), as_json=as_json)
        return
    from pbg_tasks.tasks.configs import load_config_from
    from pbg_tasks.tasks.evaluate_directory import evaluate_directory

    result = evaluate_directory(
        load_config_from(target, param or ()),
        filtered=filtered,
        known=known or (),
        negatives=negatives,
        max_candidates=max_candidates,
        memory_gb=memory_gb,
        seed=seed,
    )
    show_result(result, as_json=as_json)
