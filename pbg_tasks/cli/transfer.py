"""``pbg import``: edge lists into PBG's directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pbg_tasks.cli.common import Json, Override, finite, refuse, show_result

if TYPE_CHECKING:
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.tasks.directory.importing import EdgeLists

app = typer.Typer()
imports = typer.Typer(help="Import edge lists into PBG's directories.", no_args_is_help=True)
app.add_typer(imports, name="import")

Config = Annotated[str, typer.Argument(help="PBG config (.py, .json, .yaml; local or s3://).", show_default=False)]
Lists = Annotated[
    list[str], typer.Argument(help="An edge list (file, folder or glob) for each of edge_paths.", show_default=False)
]
Lhs = Annotated[str, typer.Option("--lhs-col", "-l", help="Column of the left-hand ends.", show_default=False)]
Rhs = Annotated[str, typer.Option("--rhs-col", "-r", help="Column of the right-hand ends.", show_default=False)]
Rel = Annotated[str | None, typer.Option("--rel-col", help="Column of the relations, if any.")]
Weight = Annotated[str | None, typer.Option("--weight-col", help="Column of the weights, if any.")]
EntityMinCount = Annotated[int, typer.Option(min=1, help="Leave out entities that occur less often.")]
RelationMinCount = Annotated[int, typer.Option(min=1, help="Leave out relations of the data that occur less often.")]
Separator = Annotated[str, typer.Option("--feature-separator", help="Between two features of a featurized entity.")]
MemoryGb = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="Memory; beyond it, scratch is used. Training fits into it with num_partitions: auto.",
        callback=finite,
    ),
]


@app.command()
def init(
    target: Annotated[
        str,
        typer.Argument(
            metavar="LOCATION|CONFIG",
            help="With --store: snapshots: a folder, a file, or a path with {snapshot}. Else the PBG config to write.",
            show_default=False,
        ),
    ],
    lists: Annotated[
        list[str] | None,
        typer.Argument(
            help="For a CONFIG: edge lists (file, folder or glob), the training edges first.", show_default=False
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Store of the graph; prints a graph spec for it.", show_default=False)
    ] = None,
    graph: Annotated[
        str | None, typer.Option(help="With --store: name of the graph, if not the store's.", show_default=False)
    ] = None,
    lhs_col: Annotated[str | None, typer.Option("--lhs-col", "-l", help="Column of the left-hand ends.")] = None,
    rhs_col: Annotated[str | None, typer.Option("--rhs-col", "-r", help="Column of the right-hand ends.")] = None,
    rel_col: Rel = None,
    weight_col: Weight = None,
    lhs_type_col: Annotated[
        str | None, typer.Option(help="With --store: column of the left-hand ends' types.", show_default=False)
    ] = None,
    rhs_type_col: Annotated[
        str | None, typer.Option(help="With --store: column of the right-hand ends' types.", show_default=False)
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Between two fields of a list; a tab by default.")] = None,
    memory_gb: Annotated[
        float, typer.Option(min=0.1, help="Memory of the counting; beyond it, scratch is used.", callback=finite)
    ] = 4.0,
    *,
    header: Annotated[bool, typer.Option("--header", help="The first line of a list names the columns.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="The lists are Parquet.")] = False,
    as_json: Json = False,
) -> None:
    """Print a spec for snapshots, or write a config for lists.

    Columns, entity types and relations of a snapshot are recognised. The model is one that suits most.
    """
    if store is not None:
        given = {"lists": lists, "delimiter": delimiter, "header": header, "parquet": parquet, "json": as_json}
        if unused := [name for name, value in given.items() if value]:
            raise typer.BadParameter(f"{unused[0]}: only for a CONFIG, without --store")
        if (lhs_type_col is None) != (rhs_type_col is None):
            raise typer.BadParameter("name both columns of types, --lhs-type-col and --rhs-type-col, or neither")
        columns = {"lhs": lhs_col, "rhs": rhs_col, "rel": rel_col, "weight": weight_col}
        columns |= {"lhs_type": lhs_type_col, "rhs_type": rhs_type_col}
        from pbg_tasks.tasks.nightly.draft import draft_spec

        named = {role: name for role, name in columns.items() if name is not None}
        typer.echo(draft_spec(target, store, graph=graph, columns=named, memory_gb=memory_gb), nl=False)
        return
    if not lists or lhs_col is None or rhs_col is None:
        raise typer.BadParameter(
            "give --store for a graph spec of snapshots; a CONFIG takes edge lists, --lhs-col and --rhs-col"
        )
    refuse("only with --store", graph=graph, lhs_type_col=lhs_type_col, rhs_type_col=rhs_type_col)
    if parquet:
        refuse("only for text, without --parquet", header=header or None, delimiter=delimiter)
    from pbg_tasks.tasks.directory.importing import EdgeLists
    from pbg_tasks.tasks.directory.init import write_config

    how = EdgeLists("tsv", lhs_col, rhs_col, rel_col, weight_col, header, delimiter or "\t")
    if parquet:
        how = EdgeLists("parquet", lhs_col, rhs_col, rel_col, weight_col)
    show_result(write_config(target, lists, how, memory_gb=memory_gb), as_json=as_json)


def _import(
    config: str,
    lists: list[str],
    how: EdgeLists,
    param: list[str] | None,
    counts: tuple[int, int],
    memory_gb: float,
    *,
    as_json: bool,
) -> None:
    from pbg_tasks.prepare.ids import Minimum
    from pbg_tasks.tasks.directory.configs import load_config_from
    from pbg_tasks.tasks.directory.importing import import_edges

    def choose(unpartitioned: ConfigSchema, auto: list[str]) -> dict[str, int]:
        from pbg_tasks.tasks.directory.auto import choose_partitions

        return choose_partitions(unpartitioned, auto, lists, how, memory_gb=memory_gb)

    loaded = load_config_from(config, param or (), choose=choose)
    show_result(import_edges(loaded, lists, how, minimum=Minimum(*counts), memory_gb=memory_gb), as_json=as_json)


@imports.command()
def tsv(
    config: Config,
    lists: Lists,
    lhs_col: Lhs,
    rhs_col: Rhs,
    rel_col: Rel = None,
    weight_col: Weight = None,
    delimiter: Annotated[str, typer.Option(help="Between two fields; a tab by default.", show_default=False)] = "\t",
    entity_min_count: EntityMinCount = 1,
    relation_type_min_count: RelationMinCount = 1,
    feature_separator: Separator = ",",
    memory_gb: MemoryGb = 4.0,
    param: Override = None,
    *,
    header: Annotated[bool, typer.Option("--header", help="The first line names the columns.")] = False,
    as_json: Json = False,
) -> None:
    """Import text; columns are numbers, or names with --header.

    Numbers count from 0. Files ending in .gz, .bz2 and .zst are decompressed.
    """
    from pbg_tasks.tasks.directory.importing import EdgeLists

    how = EdgeLists("tsv", lhs_col, rhs_col, rel_col, weight_col, header, delimiter, feature_separator)
    counts = (entity_min_count, relation_type_min_count)
    _import(config, lists, how, param, counts, memory_gb, as_json=as_json)


@imports.command()
def parquet(
    config: Config,
    lists: Lists,
    lhs_col: Lhs,
    rhs_col: Rhs,
    rel_col: Rel = None,
    weight_col: Weight = None,
    entity_min_count: EntityMinCount = 1,
    relation_type_min_count: RelationMinCount = 1,
    feature_separator: Separator = ",",
    memory_gb: MemoryGb = 4.0,
    param: Override = None,
    *,
    as_json: Json = False,
) -> None:
    """Import Parquet: columns are names."""
    from pbg_tasks.tasks.directory.importing import EdgeLists

    how = EdgeLists("parquet", lhs_col, rhs_col, rel_col, weight_col, feature_separator=feature_separator)
    counts = (entity_min_count, relation_type_min_count)
    _import(config, lists, how, param, counts, memory_gb, as_json=as_json)
