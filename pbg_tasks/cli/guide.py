"""Groups of commands in ``pbg --help``, with an example of each."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer
    from typer.models import CommandInfo, TyperInfo

GROUPS: dict[str, dict[str, str]] = {
    "Begin": {
        "init": "pbg init s3://bucket/edges --store s3://bucket/graphs/shop > shop.yaml",
        "run": "pbg run shop.yaml",
        "show": "pbg show shop.yaml",
        "info": "pbg info",
        "keys": "pbg keys gates",
        "schema": "pbg schema > graph-spec.schema.json",
        "datasets": "pbg datasets wordnet data/wordnet",
    },
    "A night, task by task": {
        "plan": "pbg plan shop.yaml 2026-11-20",
        "validate": "pbg validate s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "partition": "pbg partition s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "bucket": "pbg bucket s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "train": "pbg train s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "preserve": "pbg preserve s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "eval": "pbg eval s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "drift": "pbg drift s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "gate": "pbg gate s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "publish": "pbg publish s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "prepare": "pbg prepare s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "finish": "pbg finish s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "export-release": "pbg export-release s3://bucket/graphs/shop/runs/2026-11-20-1f0c parquet",
        "announced": "pbg announced s3://bucket/graphs/shop/runs/2026-11-20-1f0c publish",
        "report": "pbg report shop.yaml",
    },
    "Decisions on nights and releases": {
        "releases": "pbg releases shop.yaml",
        "promote": "pbg promote shop.yaml 7 --share 10%",
        "rollback": "pbg rollback shop.yaml 7",
        "approve": "pbg approve s3://bucket/graphs/shop/runs/2026-11-20-1f0c --reason 'half the shops are closed'",
        "reject": "pbg reject s3://bucket/graphs/shop/runs/2026-11-20-1f0c --reason 'the feed was down'",
        "redo": "pbg redo shop.yaml 2026-11-20",
        "skip": "pbg skip shop.yaml 2026-11-20 --reason 'no export that day'",
        "pin": "pbg pin shop.yaml 7 --for ads --owner mia --until 2026-12-31",
        "unpin": "pbg unpin shop.yaml --for ads",
        "replay": "pbg replay shop.yaml 7",
        "drill": "pbg drill shop.yaml",
        "gc": "pbg gc s3://bucket/graphs/shop --keep-releases 14 --dry-run",
        "adopt": "pbg adopt s3://old/model s3://old/entities shop.yaml",
        "repartition": "pbg repartition shop.yaml --partitions 8",
    },
    "Files and other tools": {
        "export": "pbg export parquet s3://bucket/graphs/shop s3://bucket/vectors/2026-11-20",
        "import-embeddings": "pbg import-embeddings word2vec vectors.txt init/ --type product",
        "verify": "pbg verify s3://bucket/graphs/shop/runs/2026-11-20-1f0c",
        "import": "pbg import tsv config.py train.tsv test.tsv -l 0 --rel-col 1 -r 2",
        "config": "pbg config config.py relations.0.operator",
        "partition-server": "pbg partition-server config.py --rank 0",
    },
    "Search of hyper-parameters": {
        "tune": "pbg tune shop.yaml --out best.yaml",
        "tune-start": "pbg tune-start shop.yaml 2026-11-20",
        "tune-select": "pbg tune-select s3://bucket/graphs/shop/runs/2026-11-20-1f0c 8a41 0",
        "tune-trial": "pbg tune-trial s3://bucket/graphs/shop/runs/2026-11-20-1f0c 8a41 c3 0",
        "tune-finish": "pbg tune-finish s3://bucket/graphs/shop/runs/2026-11-20-1f0c 8a41",
    },
    "Airflow": {
        "dag-file": "pbg dag-file dags/ --graphs graphs/",
        "dag-files": "pbg dag-files graphs/ dags/pbg",
    },
}
LEAVES = {
    "datasets wordnet": "pbg datasets wordnet data/wordnet",
    "import tsv": "pbg import tsv config.py train.tsv test.tsv -l 0 --rel-col 1 -r 2",
    "import parquet": "pbg import parquet config.py edges/ -l source --rel-col kind -r target",
}
"""Examples of commands within commands."""


class GuidedGroup(TyperGroup):
    """Group of commands in the order of ``GROUPS``."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's, of which typer has a copy of its own
        """Return the names of the commands, those of a group together."""
        order = [name for commands in GROUPS.values() for name in commands]
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else len(order))


def guide(app: typer.Typer) -> None:
    """Give each command its group and its example."""
    places = {name: (group, example) for group, commands in GROUPS.items() for name, example in commands.items()}
    for name, part in _parts(app):
        if name in places:  # a test names a command that is in no group
            part.rich_help_panel, example = places[name]
            part.epilog = f"Example: {example}"
        elif name in LEAVES:
            part.epilog = f"Example: {LEAVES[name]}"


def called(app: typer.Typer, name: str) -> typer.Typer:
    """Return the program with one command alone, where it has the command.

    To read the parameters of all of them takes a sixth of the start of a short task.
    """
    if " " in name or name not in dict(_parts(app)):
        return app
    found = copy(app)
    found.registered_commands = [command for command in app.registered_commands if _name(command) == name]
    found.registered_groups = []
    for group in app.registered_groups:
        if group.name == name:
            found.registered_groups.append(group)
        elif not group.name and group.typer_instance is not None and name in dict(_parts(group.typer_instance)):
            alone = copy(group)
            alone.typer_instance = called(group.typer_instance, name)
            found.registered_groups.append(alone)
    return found


def _name(command: CommandInfo) -> str:
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-")


def _parts(app: typer.Typer, above: str = "") -> Iterator[tuple[str, CommandInfo | TyperInfo]]:
    """Yield commands and named groups, with the words that call them."""
    for command in app.registered_commands:
        yield f"{above}{_name(command)}", command
    for group in app.registered_groups:
        name = group.name or ""
        if name:
            yield f"{above}{name}", group
        if group.typer_instance is not None:
            yield from _parts(group.typer_instance, f"{above}{name} " if name else above)
