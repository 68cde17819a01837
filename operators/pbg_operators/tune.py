"""DAG ``tune_{graph}``, with a mapped task for each candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, TriggerRule, WeightRule, chain

from pbg_operators.form import tune_form
from pbg_operators.plan import snapshot_of
from pbg_operators.report import ReportOperator
from pbg_operators.settings import place_of, settings_of
from pbg_operators.task import GraphOperator, PbgOperator, answer, check_arguments
from pbg_operators.upkeep import side_dag
from pbg_operators.xcom import pulled_answer, template
from pbg_tasks.config.airflow import TaskSettings
from pbg_tasks.config.results import CandidatesAnswer, StartedAnswer
from pbg_tasks.config.tune_space import require_tunable, rung_epochs

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG, Context
    from pydantic import JsonValue

    from pbg_tasks.config import GraphSpec

START, PREPARE, SELECT, TRIAL, FINISH = "tune_start", "tune_prepare", "tune_select", "tune_trial", "tune_finish"
RUN, SEARCH = (template(pulled_answer(START, StartedAnswer, key)) for key in ("run", "search"))


class TuneStartOperator(GraphOperator):
    """Run ``pbg tune-start`` for the snapshot of the partition key or form.

    Args:
        spec: path of the graph spec.
    """

    overwrite_rtif_after_execution = True  # the task's page then shows the arguments, which are known only after it

    def __init__(self, *, spec: str, **kwargs: Any) -> None:  # noqa: ANN401 - PbgOperator's own arguments
        super().__init__(command="tune-start", **kwargs)
        self.spec = spec

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Plan the shared run, and store the search.

        Raises:
            AirflowFailException: there is no snapshot, the space is wrong, a field of the form holds credentials, or
                the answer is of another version.
        """
        accepted = context["params"]["accept_data"]
        self.arguments = [self.spec, f"--snapshot={snapshot_of(context)}"]
        self.arguments += [f"--accept-data={accepted}"] if accepted else []
        check_arguments(self.arguments)
        result = super().execute(context)
        answer(StartedAnswer, self.command, result)  # here, because a key that lacks would fail a later task's template
        return result


class TuneOperator(PbgOperator):
    """Run a step of a search; the first argument is a run."""

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Run the step; fails as ``PbgOperator`` does."""
        environment = self._environment()
        self._show_link(context, self.arguments[0])
        return self._run(environment, self.command, self.arguments)


class TuneSelectOperator(TuneOperator):
    """Run ``pbg tune-select``; return the arguments of each candidate's task."""

    def execute(self, context: Context) -> list[list[str]]:  # type: ignore[override]
        """Decide the rung before, and list the candidates of this one.

        Raises:
            AirflowFailException: no candidate of the rung before has a result.
        """
        found = answer(CandidatesAnswer, self.command, super().execute(context))
        return [[found.run, found.search, trial, str(found.rung)] for trial in found.trials]


def tune_dag(spec: GraphSpec, spec_path: Path) -> DAG:
    """Make the DAG of a spec's search.

    A candidate whose task fails for good loses; the search goes on without it.

    Raises:
        ConfigError: keys of the space are wrong.
    """
    search = require_tunable(spec, source=str(spec_path))
    about = f"Search hyper-parameters of graph {spec.graph} on one snapshot"
    with side_dag("tune", spec, about, params=tune_form(spec)) as dag:
        start = TuneStartOperator(task_id=START, spec=str(spec_path.absolute()), spark=spec.launch.session)
        prepare = PbgOperator(task_id=PREPARE, command="prepare", arguments=[RUN], **place_of(spec, "prepare"))
        before: Any = prepare
        for rung in range(len(rung_epochs(spec, search))):
            with TaskGroup(f"rung_{rung}", tooltip="Candidates that train the same number of epochs"):
                select = TuneSelectOperator(
                    task_id=SELECT,
                    command="tune-select",
                    arguments=[RUN, SEARCH, str(rung)],
                    trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS if rung else TriggerRule.ALL_SUCCESS,
                )
                trial = TuneOperator.partial(
                    task_id=TRIAL,
                    command="tune-trial",
                    max_active_tis_per_dagrun=search.parallel,
                    map_index_template="{{ task.arguments[2] }}",
                    store_conn_id=spec.airflow.connection,  # a mapped task takes no argument of its class by default
                    weight_rule=WeightRule.ABSOLUTE,
                    **settings_of(spec, TRIAL, spec_path) | {"priority_weight": _weight_of_trial(spec)},
                ).expand(arguments=select.output)
            chain(before, select, trial)
            before = trial
        finish = TuneOperator(
            task_id=FINISH,
            command="tune-finish",
            arguments=[RUN, SEARCH],
            trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
        )
        start >> prepare
        report = ReportOperator(task_id="report", arguments=[RUN])
        report.trigger_rule = TriggerRule.ALL_SUCCESS  # else its success would hide a search that failed
        chain(before, finish, report)
        dag.add_result(finish.output)
    return dag


def _weight_of_trial(spec: GraphSpec) -> int:
    """Return the spec's weight of trials, or one below that of plans."""
    own = spec.airflow.tasks.get(TRIAL, TaskSettings()).priority_weight
    below: int = spec.airflow.of("plan").get("priority_weight", 1) - 1
    return below if own is None else own
