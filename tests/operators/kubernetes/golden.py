"""Write the objects of docker/kubernetes: ``python -m tests.operators.kubernetes.golden``."""

from __future__ import annotations

from tests.operators.kubernetes.gangs import TEMPLATES, golden, golden_jobset

if __name__ == "__main__":
    (TEMPLATES / "train-job.yaml").write_text(golden())
    (TEMPLATES / "jobset.yaml").write_text(golden_jobset())
