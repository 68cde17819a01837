"""Train a bucketed run on the cluster of kubectl.

It does the same as the task; docker/kind.sh calls it.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from pbg_tasks.config import KubernetesLaunch
from tests.airflow_home import use_private_airflow


def main(run: str, image: str) -> None:
    use_private_airflow()
    from pbg_operators.train_job import PBGTrainJobOperator
    from tests.operators.kubernetes.conftest import State

    launch = KubernetesLaunch(
        image=image,
        allow_tag=True,
        namespace="pbg",
        resources={"cpu": "250m", "memory": "1Gi"},
        scratch="1Gi",
        secret="pbg-store",  # noqa: S106 (its name)
    )
    task = PBGTrainJobOperator(
        task_id="train", launcher="kubernetes", arguments=[run], ranks=4, kubernetes=launch, store_conn_id=None
    )
    ti = SimpleNamespace(dag_id="kind", run_id=run, task_id="train", map_index=-1, xcom_push=lambda **_: None)
    result = task.execute({"ti": ti, "task_state_store": State()})
    assert result["ranks"] == 4, result
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
