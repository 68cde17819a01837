"""``pbg export`` and ``pbg import-embeddings``: exchange with other tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbg_tasks.cli.common import Json, Override, is_config, refuse, show_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.exports import ExportOptions
    from pbg_tasks.tasks.exchange.export_tsv import ExportedTexts

app = typer.Typer()

_EXPORTS = (
    "parquet, npy, word2vec, word2vec-bin, safetensors, faiss, projector, tsv, angel, angel-line, or one of a package; "
    "or a vector store: lancedb, milvus, pgvector, qdrant, or one of a package."
)
_IMPORTS = "parquet, npy, word2vec, tsv, wikidata-pbg, angel, angel-line, or one of a package."
_KEY = "angel-line: after the node: colon, space, comma, tab (words of Angel's settings), or the characters."
_FEATURE = "angel-line: between numbers: the same."
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Option of a sink or a package's format; may be repeated."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the files at the destination.")]
_OF_PBG = {"entities_output": "entity_embeddings.tsv", "relation_types_output": "relation_types_parameters.tsv"}


@app.command()
def export(
    exchange: Annotated[str, typer.Argument(metavar="FORMAT", help=_EXPORTS, show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            help="A release, run or checkpoint directory, a graph's store, or a PBG config; local or s3://.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str | None,
        typer.Argument(
            metavar="DEST",
            help="Folder to write, local or s3://, or a vector store. Only tsv of a config goes without: it writes "
            "PBG's two files.",
            show_default=False,
        ),
    ] = None,
    channel: Annotated[str | None, typer.Option(help="Channel of a store that has several.")] = None,
    entity_path: Annotated[str | None, typer.Option(help="Directory of the names, if not the config's.")] = None,
    types: Annotated[list[str] | None, typer.Option("--type", help="Export this entity type; may be repeated.")] = None,
    entities_output: Annotated[str | None, typer.Option(help="tsv without DEST: text of embeddings.")] = None,
    relation_types_output: Annotated[str | None, typer.Option(help="tsv without DEST: text of operators.")] = None,
    feast: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="parquet: define Feast feature views of names with this prefix."),
    ] = None,
    layout: Annotated[
        Literal["TextColumn", "BinaryColumn"] | None, typer.Option(help="angel: matrix format of the embeddings.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="projector: largest number of points of a type.")] = None,
    index: Annotated[str | None, typer.Option(help="faiss: the index, in the notation of index_factory.")] = None,
    parameters: Annotated[str | None, typer.Option(help="faiss: search parameters, such as efSearch=128.")] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=0, help="faiss: rows held in memory; lists of an IVF index are merged on disk.")
    ] = None,
    neighbors: Annotated[int | None, typer.Option(min=1, help="faiss and sinks: the k of recall@k.")] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="faiss and sinks: number of rows whose neighbours are searched.")
    ] = None,
    min_recall: Annotated[
        float | None, typer.Option(min=0, max=1, help="faiss and sinks: fail below this recall.")
    ] = None,
    key_separator: Annotated[str | None, typer.Option(help=_KEY)] = None,
    feature_separator: Annotated[str | None, typer.Option(help=_FEATURE)] = None,
    option: Options = None,
    param: Override = None,
    part: Annotated[
        str | None,
        typer.Option(help="i/n: only write the files of one share of the partitions.", show_default=False),
    ] = None,
    parts: Annotated[
        int | None, typer.Option(min=1, help="Make the export of so many parts.", show_default=False)
    ] = None,
    *,
    escape: Annotated[
        bool | None,
        typer.Option("--escape", help="Percent-encode characters that names may not have, instead of refusing them."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write embeddings for other tools, or fill a vector store."""
    outputs = {"entities_output": entities_output, "relation_types_output": relation_types_output}
    options = {
        "types": types or None,
        "escape": escape,
        "feast": feast,
        "layout": layout,
        "key_separator": key_separator,
        "feature_separator": feature_separator,
        "limit": limit,
        "index": index,
        "parameters": parameters,
        "shard_rows": shard_rows,
        "neighbors": neighbors,
        "queries": queries,
        "min_recall": min_recall,
        "options": _own(option, exchange),
    }
    model = _model(source, param)
    if destination is None:
        if exchange != "tsv" or isinstance(model, str):
            raise typer.BadParameter(_why_no_destination(exchange))
        refuse("only with DEST", channel=channel, entity_path=entity_path, part=part, parts=parts, **options)
        result: Mapping[str, object] = _export_as_pbg(model, outputs, overwrite=overwrite)
    else:
        refuse("only for tsv without DEST", **outputs)
        task = _task(part, parts)
        result = task(
            exchange,
            model,
            destination,
            channel=channel,
            entity_path=entity_path,
            options=_options(options, exchange),
            overwrite=overwrite,
        )
    show_result(result, as_json=as_json)


def _why_no_destination(exchange: str) -> str:
    """Return the error of two arguments, where there should be three."""
    from pbg_tasks.config.exports import known_format

    try:
        known_format(exchange)
    except ValueError as error:
        return f"{error}; the format comes first, then SOURCE and DEST"
    return "DEST is missing; only `export tsv CONFIG` goes without"


def _task(part: str | None, parts: int | None) -> Callable[..., Mapping[str, object]]:
    """Return the function that exports: all, a part, or the merge."""
    if part is not None and parts is not None:
        raise typer.BadParameter("--parts: makes the export of all parts; leave --part out")
    if part is not None:
        from pbg_tasks.tasks.exchange.export_parts import export_part

        return partial(export_part, part=part)
    if parts is not None:
        from pbg_tasks.tasks.exchange.export_parts import merge_parts

        return partial(merge_parts, parts=parts)
    from pbg_tasks.tasks.exchange.export import export as task

    return task


def _own(option: list[str] | None, exchange: str) -> dict[str, Any] | None:
    """Return the options of a package's format; None without any."""
    from pbg_tasks.config.overrides import override

    return override({}, option, source=f"options of format {exchange}") if option else None


def _export_as_pbg(config: ConfigSchema, outputs: dict[str, str | None], *, overwrite: bool) -> ExportedTexts:
    from pbg_tasks.tasks.exchange.export_tsv import export_directory

    places = {name: outputs[name] or usual for name, usual in _OF_PBG.items()}
    return export_directory(config, **places, overwrite=overwrite)


def _model(source: str, param: list[str] | None) -> str | ConfigSchema:
    """Return the config that ``source`` names, or ``source`` as a URL."""
    if is_config(source):
        from pbg_tasks.tasks.directory.configs import load_config_from

        return load_config_from(source, param or ())
    refuse(f"only for a PBG config, which {source} is not", param=param)
    return source


def _options(given: dict[str, Any], exchange: str) -> ExportOptions:
    from pbg_tasks.config.base import parse
    from pbg_tasks.config.exports import ExportOptions

    chosen = {name: value for name, value in given.items() if value is not None}
    return parse(ExportOptions, chosen, source=f"export {exchange}")


@app.command()
def import_embeddings(
    exchange: Annotated[str, typer.Argument(metavar="FORMAT", help=_IMPORTS, show_default=False)],
    source: Annotated[str, typer.Argument(help="File or folder, local or s3://.", show_default=False)],
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="Folder to write, local or s3://: an init_path.", show_default=False)
    ],
    entity: Annotated[
        str | None,
        typer.Option("--type", help="Entity type of the vectors; where SOURCE has types, read only this one."),
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="parquet: column of the names; id or name by default.")] = None,
    vector_column: Annotated[str, typer.Option(help="parquet: column of the vectors.")] = "embedding",
    key_separator: Annotated[str, typer.Option(help=_KEY)] = "colon",
    feature_separator: Annotated[str, typer.Option(help=_FEATURE)] = "space",
    option: Options = None,
    *,
    escaped: Annotated[bool, typer.Option("--escaped", help="Names are percent-encoded.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write vectors with names as an init_path for `pbg train`."""
    from pbg_tasks.publish.exchange import ReadOptions
    from pbg_tasks.tasks.exchange.import_vectors import import_embeddings as task

    own = _own(option, exchange) or {}
    options = ReadOptions(entity, escaped, id_column, vector_column, key_separator, feature_separator, own)
    show_result(task(exchange, source, destination, options=options, overwrite=overwrite), as_json=as_json)
