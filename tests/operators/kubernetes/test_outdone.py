"""Trainings that meet another one of their run."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from pbg_operators.task import ERROR_KEY, RetryableError
from pbg_operators.train_job import PBGTrainJobOperator
from tests.operators.kubernetes.conftest import JOB, RUN, operator
from tests.operators.kubernetes.jobs import RANKS, TRAIN, Try

ALIVE = "print('error: conflict: another writer is alive and owns this run', file=sys.stderr); sys.exit(5)"


def check_fails(task, context):
    """The first try is skipped; the second fails and is tried again."""
    with pytest.raises(AirflowSkipException, match="another run trains it: "):
        task(context)
    context["ti"].try_number = 2
    with pytest.raises(RetryableError, match=r"owns this run; it may be an earlier try of this task.*: clear the task"):
        task(context)
    assert context["ti"].pushed[ERROR_KEY].startswith("another run trains it: ")


def test_second_try_on_worker_fails_beside_training(fake_pbg, context):
    fake_pbg(ALIVE)
    check_fails(PBGTrainJobOperator(task_id="t", arguments=[RUN], store_conn_id=None).execute, context)


@pytest.mark.usefixtures("double")
def test_second_try_in_pod_fails_beside_training(fake_pbg, context):
    fake_pbg(f"{RANKS}    {ALIVE}")
    check_fails(lambda context: operator(1).execute(context), context)


def test_deferred_second_try_fails_beside_training(context):
    event = {"kind": "conflict", "message": "Job j: rank 0: another writer is alive and owns this run"}
    check_fails(lambda context: operator(1).execute_complete(context, event), context)


def test_second_try_beside_a_job_is_skipped(double, fake_pbg, train, context):
    """The cluster knows that the Job is another task's."""
    fake_pbg(TRAIN)
    first = Try(train, ranks=2)
    double.printed(0, "training")
    context["task_state_store"].kept.clear()
    context["ti"].run_id, context["ti"].try_number = "manual__2", 2
    assert isinstance(train(ranks=2), AirflowSkipException)
    double.objects.remove("jobs", "default", f"{JOB}-1")
    first.end()
