"""README and docs/: their commands can be pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("docker/**/*.md")])


def commands(text):
    """Return the text of code blocks, without comments, and between backquotes."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"(^|\s)#.*", "", line) for block in blocks for line in block.splitlines()]
    return lines + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_alternatives_are_not_written_as_a_pipe(document):
    """`pbg show RUN | pbg rollback graph.yaml` would roll back silently.

    It would show nothing.
    """
    assert [line for line in commands(document.read_text()) if re.search(r"\bpbg\b.*\|\s*pbg\b", line)] == []
