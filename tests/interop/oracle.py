"""PBG as an oracle, in a long-lived process or by commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Self

WORKER = Path(__file__).with_name("worker.py")
_CLI_SECONDS = 120
_STATS = re.compile(r"pos_rank: .* , count: +\d+")


class PBGError(Exception):
    """An error that PBG raised: its exception's type and message."""


class Oracle:
    """PBG 1.0.0.

    Args:
        python: interpreter of its environment.
        directory: for its log and configs.
    """

    def __init__(self, python: Path, directory: Path) -> None:
        self._python, self._directory = python, directory
        self._environment = os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self._log = directory / "worker.log"

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._worker = subprocess.Popen(
                [self._python, WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.communicate(timeout=_CLI_SECONDS)

    def train(self, document: dict[str, Any], *, seed: int = 0) -> None:
        """Train up to ``num_epochs``."""
        self._ask("train", document, seed=seed)

    def evaluate(self, document: dict[str, Any], *, known: list[str] | None = None) -> dict[str, Any]:
        """Return its metrics, and its printed line as ``printed``.

        They are filtered by the edges of ``known`` where given.
        """
        found: dict[str, Any] = self._ask("evaluate", document, known=known)
        return found

    def export(self, document: dict[str, Any], entities: Path, relations: Path) -> None:
        """Write embeddings and parameters as TSV."""
        self._ask("export", document, entities=str(entities), relations=str(relations))

    def importing(self, document: dict[str, Any], *files: Path) -> None:
        """Turn files of ``lhs rel rhs`` into its formats."""
        self._ask("importing", document, files=[str(file) for file in files])

    def command(self, module: str, document: dict[str, Any], *arguments: str | Path) -> str:
        """Run a module of PBG and return everything it prints.

        Its first argument is a config file.
        """
        config = write_config(self._directory / "config.py", document)
        done = subprocess.run(
            [self._python, "-m", f"torchbiggraph.{module}", config, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_CLI_SECONDS,
            env=self._environment,
        )
        if done.returncode:
            raise PBGError(done.stdout)
        return done.stdout

    def _ask(self, command: str, document: dict[str, Any], *, seed: int = 0, **arguments: object) -> Any:
        request = {"command": command, "config": document, "seed": seed, "arguments": arguments}
        print(json.dumps(request), file=self._worker.stdin, flush=True)
        line = self._worker.stdout.readline()
        if not line:
            raise PBGError(f"the worker died: {self._log.read_text()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise PBGError(f"{answer['error']}: {answer['message']}")
        return answer["result"]


def write_config(path: Path, document: dict[str, Any]) -> Path:
    """Write a config for PBG: a Python file with a function."""
    path.write_text(f"def get_torchbiggraph_config():\n    return {document!r}\n")
    return path


def parse_stats(printed: str) -> dict[str, str]:
    """Return the figures of the last statistics line that PBG printed.

    Each has the text of the line.
    """
    return dict(re.findall(r"(\w+): +(\S+)", _STATS.findall(printed)[-1]))
