"""Language check of docstrings, comments, documents, tests and commits.

    make lint                          # every file, and the commits since the rule
    python .ci/language.py FILE ...    # these files alone

CONTRIBUTING.md has the rules with examples.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("pbg_tasks", "operators", "dags", "tests", "benchmarks", "examples", "docker", ".ci", "setup.py")
DOCUMENTS = ("*.md", "docs/**/*.md", "docker/*.md")
OTHERS = (
    "Makefile",
    "*.toml",
    "*.yml",
    ".*.yaml",
    ".ci/run",
    ".github/**/*.yml",
    "docker/**/*",
    "examples/**/*.yaml",
    "tests/**/*.cpp",
)
OTHERS += ("pbg_tasks/native/*", "pbg_tasks/report/static/*.js")
"""Files that are neither: only their comments are checked."""
RULED_SINCE = "4c1a3809f4"
"""The last commit that the rule for subjects does not cover."""

WORDS = {
    "told": (r"tells?|telling|told", "report, log, raise or return; a process gets a signal, a caller an error"),
    "said": (r"says?|saying|said", "report, log, contain or mean"),
    "nobody": (
        r"nobody|somebody|everybody|anybody|someone|everyone|anyone",
        "name the run, task, rank, store, reader or user",
    ),
    "who": (r"who|whoever|whom|whomever", "name the thing of the system that acts"),
    "lies": (r"lies|lie|lay|lain", "is stored, is, stands"),
}
"""For each rule its words, and what to write instead."""
PACKAGES = ("pbg_tasks", "operators", "dags")
"""Rooms whose functions have at most two assignments on a line, and whose comprehensions hold no other."""
FIRST_LINE_WORDS = 12
TEST_NAME_WORDS = 8
MOST_ASSIGNMENTS = 2
SUBJECT_LENGTH = 72

_WORD = re.compile("|".join(rf"(?P<{rule}>\b(?:{words})\b)" for rule, (words, _) in WORDS.items()), re.IGNORECASE)
_OPENING = re.compile(r"(what|which|whom|whose|who|how|where)\b", re.IGNORECASE)
_CODE = re.compile(r"``.*?``|`[^`\n]*`", re.DOTALL)
_BLOCK = re.compile(
    r"^ *(```|~~~).*?^ *\1 *$|<!--.*?-->|(?<=\]\()[^)\n]*|`[^`\n]+(?:\n[^`\n]+)?`", re.DOTALL | re.MULTILINE
)
"""Parts of a document that are not prose: code, comments and the targets of links."""
_COMMENTS = {
    **dict.fromkeys((".cpp", ".hpp", ".inc", ".js"), re.compile(r"(?<!:)//[^\n]*|/\*.*?\*/", re.DOTALL)),
    **dict.fromkeys(("", ".in", ".sh", ".toml", ".yaml", ".yml"), re.compile(r"(?<!\S)#.*")),
}
"""Comments of other files, by suffix."""
_COMPREHENSION = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_PEOPLE = re.compile(r"who|whom", re.IGNORECASE)
_SUBJECT = re.compile(r"[a-z0-9][a-z0-9_./-]*(?:, [a-z0-9_./-]+)*: [a-z0-9`_]\S*(?: \S+)+")


class Finding(NamedTuple):
    """A place where a rule is broken.

    Attributes:
        line: of the file, from 1.
        rule: its name.
        text: the fault and its repair.
    """

    line: int
    rule: str
    text: str


def check_source(source: str) -> list[Finding]:
    """Return the findings of a Python file, by line.

    Raises:
        SyntaxError: it is not Python.
    """
    return sorted([*_of_docstrings(ast.parse(source)), *_of_comments(source)])


def check_document(text: str) -> list[Finding]:
    """Return the findings of a Markdown file, by line.

    Only words are checked, and ``who`` is free: documents also describe people, as in ``readers who``.
    """
    found = _of_text(_blank(_BLOCK, text), 1)
    return [each for each in found if not _PEOPLE.fullmatch(each.text.split("'")[1])]


def check_assignments(source: str) -> list[Finding]:
    """Return the lines of functions with more than two assignments."""
    functions = (
        each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lines = {
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and len(node.value.elts) > MOST_ASSIGNMENTS
    }
    return [Finding(line, "assignments", f"more than {MOST_ASSIGNMENTS} on a line") for line in sorted(lines)]


def check_comprehensions(source: str) -> list[Finding]:
    """Return the lines of comprehensions within a comprehension."""
    lines = {
        inner.lineno
        for outer in ast.walk(ast.parse(source))
        if isinstance(outer, _COMPREHENSION)
        for inner in ast.walk(outer)
        if inner is not outer and isinstance(inner, _COMPREHENSION)
    }
    fault = "one within another; name the inner one, or write a loop"
    return [Finding(line, "comprehension", fault) for line in sorted(lines)]


def check_comments(text: str, suffix: str) -> list[Finding]:
    """Return the findings in the comments of another file, by line.

    Args:
        text: of the file.
        suffix: of its name, a key of ``_COMMENTS``.
    """
    comments = ((text.count("\n", 0, found.start()) + 1, found[0]) for found in _COMMENTS[suffix].finditer(text))
    return [each for line, comment in comments for each in _of_text(comment, line)]


def _of_docstrings(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from _of_test_name(node)
        for number, statement in enumerate(node.body):
            constant = _string(statement)
            if constant is None:
                continue
            text = str(constant.value)
            yield from _of_text(text, constant.lineno)
            first = text.strip().partition("\n")[0]
            yield from _of_first_line(first, constant.lineno) if number == 0 else _of_opening(first, constant.lineno)


def _string(statement: ast.stmt) -> ast.Constant | None:
    """Return the string of a docstring, also an attribute's."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value if isinstance(statement.value.value, str) else None
    return None


def _of_test_name(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
        words = len(node.name.split("_")) - 1
        if words > TEST_NAME_WORDS:
            fault = f"{node.name} has {words} words; at most {TEST_NAME_WORDS}: subject_condition_result"
            yield Finding(node.lineno, "test-name", fault)
        for each in _of_text(node.name.replace("_", " "), node.lineno):
            yield each._replace(text=f"{node.name}: {each.text}")


def _of_first_line(line: str, number: int) -> Iterator[Finding]:
    words = len(line.split())
    if words > FIRST_LINE_WORDS:
        yield Finding(number, "first-line", f"{words} words in the first line; at most {FIRST_LINE_WORDS}")
    yield from _of_opening(line, number)


def _of_opening(line: str, number: int) -> Iterator[Finding]:
    """Check the first word of a docstring, also of an attribute's."""
    if found := _OPENING.match(line):
        fault = f"the first line begins with {found[0]!r}; begin with a noun or an imperative"
        yield Finding(number, "first-line", fault)


def _of_comments(source: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _of_text(token.string, token.start[0])


def _of_text(text: str, line: int) -> Iterator[Finding]:
    prose = _blank(_CODE, text)
    for found in _WORD.finditer(prose):
        rule = str(found.lastgroup)
        yield Finding(line + prose.count("\n", 0, found.start()), rule, f"{found[0]!r}: {WORDS[rule][1]}")


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Put spaces in place of what matches, so that lines stay."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def check_subject(subject: str) -> str | None:
    """Return the fault of a commit's subject; None where it has none."""
    if len(subject) > SUBJECT_LENGTH:
        return f"{len(subject)} characters; at most {SUBJECT_LENGTH}"
    if not _SUBJECT.fullmatch(subject) or subject.endswith("."):
        return "not of the form `area: verb object`, in lower case, without a full stop"
    return None


def failures(findings: Mapping[str, list[Finding]]) -> list[str]:
    """Return a line for each finding."""
    return [f"{path}:{each.line}: {each.rule}: {each.text}" for path, found in findings.items() for each in found]


def files() -> list[Path]:
    """List the files of the repository that the check covers."""
    roots = [REPOSITORY / room for room in ROOMS if (REPOSITORY / room).exists()]
    sources = (path for root in roots for path in (root.rglob("*.py") if root.is_dir() else [root]))
    return sorted([*sources, *_listed(DOCUMENTS), *(path for path in _listed(OTHERS) if path.suffix in _COMMENTS)])


def _listed(patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in REPOSITORY.glob(pattern) if path.is_file()]


def check_files(paths: list[Path]) -> dict[str, list[Finding]]:
    """Return the findings by file, named from the repository's root."""
    return {str(path.resolve().relative_to(REPOSITORY)): _check_file(path) for path in paths}


def _check_file(path: Path) -> list[Finding]:
    text = path.read_text()
    if path.suffix in _COMMENTS:
        return check_comments(text, path.suffix)
    if path.suffix != ".py":
        return check_document(text)
    found = check_source(text)
    if path.resolve().relative_to(REPOSITORY).parts[0] in PACKAGES:
        found += check_assignments(text) + check_comprehensions(text)
    return sorted(found)


def checked(paths: list[Path]) -> list[Path]:
    """Return those of some files that the check covers."""
    ruled = set(files())
    return [path for path in paths if path.suffix == ".py" or path.resolve() in ruled]


def check_commits(since: str) -> list[str]:
    """Return a line for each later commit with a faulty subject."""
    found = _git("merge-base", "--is-ancestor", since, "HEAD")
    if found.returncode != 0:
        print(f"language: no commit was checked: {since} is not in this history (a shallow clone, or no clone)")
        return []
    log = _git("log", "--no-merges", "--format=%h %s", f"{since}..HEAD").stdout.splitlines()
    faults = ((*line.split(" ", 1), check_subject(line.partition(" ")[2])) for line in log)
    return [f"commit {name}: {subject!r}: {fault}" for name, subject, fault in faults if fault]


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "no git")


def main() -> int:
    """Check what the arguments name and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="all files and the commits where none is given")
    parser.add_argument("--since", default=RULED_SINCE, help="check the subjects of the commits after this one")
    parser.add_argument("--message", type=Path, help="check the first line of this file as a subject, nothing else")
    given = parser.parse_args()
    if given.message:
        fault = check_subject((given.message.read_text().splitlines() or [""])[0])
        if fault:
            print(f"language: the commit's subject: {fault}")
        return 1 if fault else 0
    findings = check_files(checked(given.files) if given.files else files())
    failing = failures(findings)
    if not given.files:
        failing += check_commits(given.since)
    for line in failing:
        print(f"language: {line}")
    print(f"language: {len(findings)} files, {sum(map(len, findings.values()))} findings")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
