"""Write docker/kubernetes/train-job.yaml: ``python -m tests.operators.kubernetes.golden``."""

from __future__ import annotations

from tests.operators.kubernetes.gangs import TEMPLATES, golden

if __name__ == "__main__":
    (TEMPLATES / "train-job.yaml").write_text(golden())
