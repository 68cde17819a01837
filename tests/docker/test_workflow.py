"""The CI workflow, read by the real zizmor without a network."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docker.files import REPOSITORY

ZIZMOR = REPOSITORY / ".venv.audit" / "bin" / "zizmor"
READY = REPOSITORY / ".venv.audit" / ".ready"  # Make writes it once all is installed
WORKFLOW = """\
name: x
on: {trigger}
permissions: {{}}
jobs:
  a:
    runs-on: ubuntu-24.04
    steps:
      - {step}
"""
SAFE = {"trigger": "push", "step": "run: make"}
FLAWS = {
    "template-injection": {"step": 'run: "echo ${{ github.event.issue.title }}"', "trigger": "issues"},
    "unpinned-uses": {"step": "uses: actions/setup-python@v5"},
    "dangerous-triggers": {"trigger": "pull_request_target"},
}


@pytest.fixture
def findings():
    """The exit status of zizmor and the names of its findings."""
    if not READY.exists():
        pytest.skip(".venv.audit: not made yet (make audit)")
    makefile = (REPOSITORY / "Makefile").read_text()
    (arguments,) = re.findall(r"bin/zizmor (.*) \.github\n", makefile)

    def run(path):
        # A CI service may ask every program for colours.
        command = [str(ZIZMOR), *arguments.split(), "--color=never", "--render-links=never", str(path)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, set(re.findall(r"(?m)^\w+\[([a-z-]+)\]", done.stdout))

    return run


def test_workflows_of_repository_have_no_findings(findings):
    assert findings(".github") == (0, set())


@pytest.mark.parametrize("flaw", FLAWS)
def test_flaw_of_workflow_is_found(findings, tmp_path, flaw):
    path = tmp_path / "workflow.yml"
    path.write_text(WORKFLOW.format_map(SAFE))
    assert findings(path) == (0, set())
    path.write_text(WORKFLOW.format_map(SAFE | FLAWS[flaw]))
    status, found = findings(path)
    assert status != 0
    assert flaw in found
