"""``Night``: tasks of one graph's night, in a DAG or group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, chain

from pbg_operators.alerts import Alert
from pbg_operators.assets import channel_asset, edges_asset, export_asset, readers_asset
from pbg_operators.export import ExportOperator
from pbg_operators.gate import ApprovalGateOperator
from pbg_operators.parts import EVAL_PART, EvalPartOperator, ExportPartOperator
from pbg_operators.plan import PlanOperator
from pbg_operators.promote import PromoteOperator
from pbg_operators.publish import FinishOperator, PublishOperator
from pbg_operators.report import ReportOperator
from pbg_operators.settings import connection_of, place_of, settings_of
from pbg_operators.spark.providers import check_provider
from pbg_operators.task import PbgOperator
from pbg_operators.train_job import PBGTrainJobOperator
from pbg_operators.xcom import pulled, pulled_if_any, pulled_or_none, template
from pbg_tasks.config.airflow import EXPORTS, TOGETHER
from pbg_tasks.config.results import BucketResult, EvalResult, PlanResult, PublishResult

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.exports import Export

JUDGED = ("eval", "drift")
"""Tasks between training and the gate."""


class Night:
    """Tasks of one graph's night, in the open DAG or group.

    Args:
        spec: of the graph.
        spec_path: path of its file.
        prefix: of the ids of tasks, by the group that is open; with a full stop at its end.
        snapshot: template of the snapshot's key; None: the run's partition key or form names it.
        form: whether the DAG has the form of a night.

    Attributes:
        plan: the first task.
        publish: the task that moves the channel; it is skipped where the channel did not move.
        summary: the task that returns all figures.
        others: tasks at the end that change no result of the night: pages, promotion.

    Raises:
        ConfigError: the provider that ``launch.prepare`` takes is not installed.
    """

    def __init__(
        self, spec: GraphSpec, spec_path: Path, *, prefix: str = "", snapshot: str | None = None, form: bool = True
    ) -> None:
        check_provider(spec.launch.prepare, f"{spec_path}: launch.prepare")
        # The path is not resolved: what git-sync or a ConfigMap leads a link to is removed when the next one comes.
        self._spec, self._path = spec, str(spec_path.absolute())
        self._form = form
        self._prepared, self._released = f"{prefix}prepare", f"{prefix}release"
        self._refused = Alert(spec, "refused")
        self._run = template(pulled(self._prepared, PlanResult, "run"))
        self._snapshot = template(pulled(self._prepared, PlanResult, "snapshot"), json=True)
        self.plan: PlanOperator
        self.publish: PublishOperator
        self._make(snapshot)

    def _make(self, snapshot: str | None) -> None:
        few = self._spec.airflow.few_tasks
        with TaskGroup("prepare", tooltip="From a snapshot to numbered entities and edge buckets"):
            self.plan = self._planning(snapshot)
            prepare = [self.plan, *self._preparation()]
        with TaskGroup("train", tooltip="From edge buckets to a kept version"):
            train = [self._training(), *([] if few else [self._task("preserve", refused=self._refused)])]
        with TaskGroup("release", tooltip="From a kept version to what readers see"):
            judge = [] if few else [*self._evaluation(), self._gate("gate")]
            self.publish = self._publication()
        begins, exports = self._exports()
        # A run that is not to be published skips `publish` and exports, and it has succeeded all the same.
        self.summary = PbgOperator(
            task_id="summary", command="show", arguments=[self._run, "--log"], trigger_rule="none_failed"
        )
        self.others = [self._report(), *self._promotion()]
        chain(*prepare, *train, *judge, self.publish, *([begins] if begins else []))
        ends: list[PbgOperator] = [*exports] if exports else [self.publish]
        for before in ends:  # a list does not follow a list of another length in a chain
            before >> [self.summary, *self.others]

    def _task(self, command: str, **kwargs: Any) -> PbgOperator:  # noqa: ANN401 - BaseOperator's
        return PbgOperator(task_id=command, command=command, arguments=[self._run], **kwargs)

    def _planning(self, snapshot: str | None) -> PlanOperator:
        spec = self._spec
        return PlanOperator(
            task_id="plan",
            spec=self._path,
            snapshot=snapshot,
            patience=spec.nights.patience,
            store=spec.store,
            source=spec.snapshots.model_dump_json(exclude_defaults=True),
            form=self._form,
            inlets=[edges_asset(spec)],
            refused=self._refused,
            spark=spec.launch.session,
        )

    def _preparation(self) -> list[PbgOperator]:
        """Make the tasks between plan and training."""
        if self._spec.airflow.few_tasks:
            more = _named("prepare") | place_of(self._spec, "prepare")
            return [self._task("prepare", refused=self._refused, warned=Alert(self._spec, "warned"), **more)]
        bucket = self._task("bucket", refused=self._refused, **place_of(self._spec, "bucket"))
        return [self._gate("validate"), self._gate("partition"), bucket]

    def _evaluation(self) -> list[Any]:
        """Make the tasks between training and the gate.

        With ``eval.parts``, mapped tasks count the candidates, and ``eval`` adds their counts.
        """
        spec, parts = self._spec, self._spec.eval.parts
        evaluate, drift = (self._task(name, refused=self._refused, **place_of(spec, name)) for name in JUDGED)
        if parts == 1:
            return [evaluate, drift]
        evaluate.arguments.append(f"--parts={parts}")
        part = EvalPartOperator.partial(
            task_id=EVAL_PART,
            command="eval",
            refused=self._refused,
            map_index_template="{{ task.arguments[1].partition('=')[2] }}",
            store_conn_id=connection_of(spec, evaluate),  # a mapped task takes no argument of its class by default
            **place_of(spec, EVAL_PART),
            **settings_of(spec, EVAL_PART, Path(self._path)),
        ).expand(arguments=EvalPartOperator.arguments_of(self._run, parts))
        return [part, evaluate, drift]

    def _publication(self) -> PublishOperator:
        """Make the task that publishes.

        With few tasks, it does all that follows the training.
        """
        spec, few = self._spec, self._spec.airflow.few_tasks
        edges = pulled_or_none(self._prepared, BucketResult, "edges", "total", within="prepare" if few else None)
        facts = {"snapshot": self._snapshot, "edges": template(edges, json=True)}
        given: dict[str, Any] = {
            "arguments": [self._run],
            "asset": channel_asset(spec),
            "inlets": [edges_asset(spec)],
            "refused": self._refused,
            "alert": Alert(spec, "published"),
        }
        if few:  # the task finds the MRR itself
            given |= _named("finish") | place_of(spec, "finish")
            return FinishOperator(task_id="finish", facts=facts, warned=Alert(spec, "warned"), **given)
        facts["mrr"] = template(pulled_or_none(self._released, EvalResult, "filtered", "mrr"), json=True)
        return PublishOperator(task_id="publish", facts=facts, **given)

    def _promotion(self) -> list[PromoteOperator]:
        """Make the task that promotes releases by the spec's rules.

        Without rules there is none. It also runs where the night's release was announced before, and was perhaps not
        promoted.
        """
        rules = self._spec.promote
        if rules is None or not rules.is_automatic:
            return []
        asset = readers_asset(self._spec)
        return [PromoteOperator(task_id="promote", spec=self._path, asset=asset, trigger_rule="none_failed")]

    def _report(self) -> ReportOperator:
        run = template(pulled_if_any(self._prepared, PlanResult, "run", "''"))
        return ReportOperator(task_id="report", arguments=[run])

    def _gate(self, command: str) -> PbgOperator:
        spec, warned = self._spec, Alert(self._spec, "warned")
        if not spec.gates.asks(command):
            return self._task(command, refused=self._refused, warned=warned, **place_of(spec, command))
        given: dict[str, Any] = {"task_id": command, "command": command, "arguments": [self._run]}
        return ApprovalGateOperator(
            **given,
            **place_of(spec, command),
            snapshot=template(pulled(self._prepared, PlanResult, "snapshot")),
            refused=self._refused,
            warned=warned,
            hours=spec.gates.ask_hours,
        )

    def _training(self) -> PBGTrainJobOperator:
        spec, launch = self._spec, self._spec.launch
        return PBGTrainJobOperator(
            task_id="train",
            arguments=[self._run],
            refused=self._refused,
            launcher=launch.launcher,
            ranks=f"{{{{ params.get('ranks') or {launch.ranks} }}}}" if self._form else str(launch.ranks),
            partition_servers=max(spec.model.num_partition_servers, 0),
            max_restarts=launch.max_restarts,
            kubernetes=launch.kubernetes,
            deferrable=launch.kubernetes is not None and launch.kubernetes.deferrable,
            # Experiments and days that are done again do not wait, and more runs may be under way than may train.
            max_active_tis_per_dag=spec.nights.parallel if spec.nights.walk == "chain" else None,
        )

    def _exports(self) -> tuple[list[Any], list[ExportOperator]]:
        """Make the tasks of each export of the spec.

        Exports do not wait for each other.

        Returns:
            The first tasks, and the last ones.
        """
        spec = self._spec
        if not spec.exports:
            return [], []
        within = "finish" if spec.airflow.few_tasks else None
        published = pulled_if_any(self._released, PublishResult, "published", "none", within=within)
        channel = pulled_if_any(self._released, PublishResult, "channel", "none", within=within)
        with TaskGroup("exports", tooltip="The release in the formats of other tools"):
            tasks = [
                ExportOperator(
                    task_id=export.name,
                    arguments=[self._run, export.name, *([f"--parts={export.parts}"] if export.parts > 1 else [])],
                    export=export.task,
                    snapshot=self._snapshot,
                    published=template(published, json=True),
                    channel=template(channel, json=True),
                    asset=export_asset(spec, export),
                    **place_of(spec, "export"),
                )
                for export in spec.exports
            ]
            begins = [
                task if export.parts == 1 else self._parts(export, task, template(published, json=True))
                for export, task in zip(spec.exports, tasks, strict=True)
            ]
        return begins, tasks

    def _parts(self, export: Export, merge: ExportOperator, published: str) -> Any:  # noqa: ANN401 - a mapped operator
        """Make the mapped tasks of an export's parts."""
        spec = self._spec
        part = ExportPartOperator.partial(
            task_id=f"{export.name}_part",
            command="export-release",
            published=published,
            trigger_rule="none_failed",
            map_index_template="{{ task.arguments[2].partition('=')[2] }}",
            store_conn_id=connection_of(spec, merge),
            **place_of(spec, "export_part"),
            **settings_of(spec, EXPORTS, Path(self._path)),
        ).expand(arguments=ExportPartOperator.arguments_of(self._run, export))
        part >> merge
        return part


def _named(command: str) -> dict[str, str]:
    """Return the name by which pages show a task that does several."""
    return {"task_display_name": ", ".join(TOGETHER[command])}
