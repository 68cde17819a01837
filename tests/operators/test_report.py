"""The task of the pages, which never changes how a night ended."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.timeout import timeout

from pbg_operators.report import ReportOperator


def test_pages_are_written_after_any_outcome(fake_pbg, context):
    fake_pbg("print(json.dumps({'task': sys.argv[1], 'run': sys.argv[2], 'pages': []}))")
    task = ReportOperator(task_id="report", arguments=["/store/runs/x"])
    assert task.trigger_rule == "all_done"
    assert task.execute(context) == {"task": "report", "run": "/store/runs/x", "pages": []}


def test_pages_that_cannot_be_written_are_skipped(fake_pbg, context):
    fake_pbg("print('error: storage: the store is away', file=sys.stderr); sys.exit(6)")
    with pytest.raises(AirflowSkipException, match=r"the pages were not written: .*the store is away"):
        ReportOperator(task_id="report", arguments=["/store/runs/x"]).execute(context)


def test_pages_that_take_too_long_are_skipped(fake_pbg, context):
    fake_pbg("import signal; time.sleep(1); os.kill(os.getppid(), signal.SIGALRM); time.sleep(60)")
    task = ReportOperator(task_id="report", arguments=["/store/runs/x"])
    with pytest.raises(AirflowSkipException, match="the pages were not written within"), timeout(60):
        task.execute(context)
    task._process._watcher.join(10)
    assert not task._process._watcher.is_alive()
    assert task._process.finish()[0] < 0  # a task's process would end here, and leave its zombie to the system


def test_missing_run_has_no_pages(context):
    with pytest.raises(AirflowSkipException, match="no run was planned"):
        ReportOperator(task_id="report", arguments=[""]).execute(context)


def test_full_or_broken_disk_skips_pages(fake_pbg, context, tmp_path):
    fake_pbg("print('{}')")
    (tmp_path / "in_the_way").write_text("a file where the scratch directory would be")
    task = ReportOperator(
        task_id="report", arguments=["/store/runs/x"], scratch=str(tmp_path / "in_the_way" / "scratch")
    )
    with pytest.raises(AirflowSkipException, match=r"the pages were not written: .*in_the_way"):
        task.execute(context)
