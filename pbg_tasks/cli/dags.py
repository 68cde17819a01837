"""``pbg dag-file`` and ``pbg dag-files``: files for Airflow's DAGs folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbg_tasks.cli.common import Json, show_result

app = typer.Typer()

Graphs = Annotated[
    Path | None,
    typer.Option(
        help="Folder of graph specs, if neither PBG_GRAPHS nor graphs_folder of Airflow's section pbg names one."
    ),
]


@app.command("dag-file")
def dag_file(
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DEST", help="Path of the file, or a folder, where it becomes reembed.py.", show_default=False
        ),
    ],
    graphs: Graphs = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that this command did not write.")] = False,
    as_json: Json = False,
) -> None:
    """Write the file that makes the Airflow DAGs of all graph specs."""
    from pbg_tasks.tasks.dag_file import write_dag_file

    show_result(write_dag_file(destination, graphs=graphs, force=force), as_json=as_json)


@app.command("dag-files")
def dag_files(
    graphs: Annotated[Path, typer.Argument(metavar="GRAPHS", help="Folder of graph specs.", show_default=False)],
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="Folder, below Airflow's DAGs folder.", show_default=False)
    ],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Replace and remove files that were changed since they were written.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a DAG file for each spec; remove those of lost specs."""
    from pbg_tasks.tasks.dag_file import write_dag_files

    show_result(write_dag_files(graphs, destination, force=force), as_json=as_json)
