"""The examples of docs/python.md, run in their order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_examples_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    script = tmp_path / "examples.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + "".join(blocks))
    run = subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True, text=True)
    relations, best, unknown = run.stdout.splitlines()
    assert relations == "('borders', 'capital_of')"
    assert best.startswith("[Answer(name='Peru', score=")
    assert unknown == "no entity of type 'entity' is named 'Limma'; did you mean 'Lima'?"
