"""Trigger form of a nightly DAG, with limited settings of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import Param

from pbg_operators.link import page_address
from pbg_tasks.config.launch import MAX_RANKS

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec

AUTO = "auto"
"""Value of ``publish``: yes, unless the form changes the training."""
OPENED = "Run Parameters"
"""Name of the section that Airflow's form opens with; all others are closed at first."""
FIELDS = ("snapshot", "publish", "epochs", "dimension", "partitions", "engine", "ranks", "accept_data")
"""Names of the fields of a night."""
AS_IN_THE_SPEC = "Leave empty for what the spec says"


def trigger_form(spec: GraphSpec, dag_id: str | None = None) -> dict[str, Param]:
    """Return the form's fields, those that a night needs first.

    The field has no list of snapshots of its own, which would be read from the store at every parse and would make a
    version of the DAG for each snapshot with a run; docs/airflow.md has the figures. ``SuggestSnapshots`` adds the list
    when the form is opened, and the field links to the page that lists them.

    A run by hand takes a snapshot, in the form or as its partition key. Airflow validates the form for runs of events,
    too, which have a partition key alone, so the field cannot be required by its schema. Nor has it a pattern: Airflow
    would show that, while ``pbg plan`` names the keys that are there before it does anything else.

    Args:
        spec: of the graph.
        dag_id: of the DAG with the form; by default that of the graph's nights.
    """
    listed = page_address(f"/dags/{quote(dag_id or f'reembed_{spec.graph}')}/begin")
    return {
        "snapshot": Param(
            None,
            type=["null", "string"],
            title="Snapshot (required)",
            description_md=(
                f"Key of the edges, put into `{spec.snapshots.location}`. [Begin a night]({listed}) lists those that "
                "are there, with what a night takes and which release it replaces. A partition key does the same."
            ),
            section=OPENED,
        ),
        "publish": Param(
            AUTO,
            type="string",
            enum=[AUTO, "yes", "no"],
            values_display={
                AUTO: "If it passes its gates, and nothing below was changed",
                "yes": "If it passes its gates, also with changed training",
                "no": "No, this is a trial",
            },
            title="Publish",
            description=f"When channel {spec.channel!r} may move to this run's release.",
            section=OPENED,
        ),
        "epochs": _number("Epochs", 1000, _spec_epochs(spec)),
        "dimension": _number("Dimension", 4096, str(spec.model.dimension)),
        "partitions": _number("Partitions", 1024, _spec_partitions(spec)),
        "engine": Param(
            None,
            type=["null", "string"],
            enum=[None, "auto", "torch", "native"],
            title="Engine",
            description=f"{AS_IN_THE_SPEC}: {spec.train.engine}.",
            section="Advanced: training of this run",
        ),
        "ranks": _number("Ranks", MAX_RANKS, str(spec.launch.ranks)),
        "accept_data": Param(
            None,
            type=["null", "string"],
            minLength=1,
            maxLength=500,
            title="Accept the data",
            description="Why the run goes on whatever the data gate says about its snapshot. Empty: the gate decides.",
            section="Advanced: gates",
        ),
    }


def redo_form(spec: GraphSpec) -> dict[str, Param]:
    """Return the fields of the DAG that repeats days.

    Only people begin it, so that Airflow's form can require the day.
    """
    return {
        "from": Param(
            type="string",
            minLength=1,
            title="From",
            description=f"Key of the corrected snapshot of {spec.snapshots.location}; released days after it follow.",
            section=OPENED,
        ),
        "dry_run": Param(
            default=False, type="boolean", title="Dry run", description="Only list the days.", section=OPENED
        ),
    }


def promote_form(spec: GraphSpec) -> dict[str, Param]:
    """Return the fields of the DAG that promotes releases."""
    return {
        "release": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Release",
            description=f"Number in channel {spec.channel}. Empty: its current one.",
            section=OPENED,
        ),
        "share": Param(
            None,
            type=["null", "string"],
            title="Share",
            description=f"Share of the keys of channel {spec.read_channel} that reads it, such as 10%. Empty: all.",
            section=OPENED,
        ),
        "stop": Param(
            default=False,
            type="boolean",
            title="End the share",
            description=f"All readers read what channel {spec.read_channel} serves.",
            section=OPENED,
        ),
        "other_space": Param(
            default=False,
            type="boolean",
            title="Other space",
            description="Even if the vectors cannot be compared with those that readers have.",
            section="Advanced: readers",
        ),
    }


def tune_form(spec: GraphSpec) -> dict[str, Param]:
    """Return the fields of the DAG that searches hyper-parameters."""
    fields = trigger_form(spec)
    return {name: fields[name] for name in ("snapshot", "accept_data")}


def _number(title: str, maximum: int, usual: str) -> Param:
    return Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=maximum,
        title=title,
        description=f"{AS_IN_THE_SPEC}: {usual}.",
        section="Advanced: training of this run",
    )


def _spec_epochs(spec: GraphSpec) -> str:
    warm = spec.train.warm_epochs if spec.continues else None
    return f"{spec.model.num_epochs}" + (f", {warm} when it continues a release" if warm else "")


def _spec_partitions(spec: GraphSpec) -> str:
    return ", ".join(f"{name} {entity.written_partitions}" for name, entity in spec.model.entities.items())
