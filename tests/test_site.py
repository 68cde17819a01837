"""The command that makes the site, on docs with dead links."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def test_site_with_dead_links_is_an_error(tmp_path):
    recipe = (REPOSITORY / "Makefile").read_text()
    (command,) = re.findall(r"^site: setup\n\t@.*?\$\(VENV\)/bin/mkdocs (.*)$", recipe, re.MULTILINE)
    for name in ("docs", "mkdocs.yml"):
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / ".ci").symlink_to(REPOSITORY / ".ci")
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write("\n[a page](nowhere.md) and [a heading](airflow.md#nothing)\n")
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", *shlex.split(command)],
        cwd=tmp_path,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert made.returncode != 0
    assert "'nowhere.md'" in made.stderr
    assert "'airflow.md#nothing'" in made.stderr
    assert "Aborted with 2 warnings" in made.stdout  # the docs themselves have no such link
