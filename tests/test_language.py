"""Rules and command of the language check."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "language.py"


@pytest.fixture(scope="module")
def language():
    spec = importlib.util.spec_from_file_location("language", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["language"] = module  # a NamedTuple looks its annotations up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["language"]


def found(language, source):
    return [(each.line, each.rule) for each in language.check_source(source)]


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("The rank is told to end.", "told"),
        ("A check tells what is wrong.", "told"),
        ("The spec says how.", "said"),
        ("Nobody reads it.", "nobody"),
        ("Everyone is a candidate.", "nobody"),
        ("The rank who asked.", "who"),
        ("Whoever resumes.", "who"),
        ("Where the file lies.", "lies"),
    ],
)
def test_word_in_docstring_or_comment_is_found(language, sentence, rule):
    assert (3, rule) in found(language, f'"""Module.\n\nMore.\n{sentence}\n"""\n'.replace("More.\n", ""))
    assert found(language, f"x = 1  # {sentence}\n") == [(1, rule)]
    assert (2, rule) in found(language, f'x = 1\n"""{sentence}"""\n')


@pytest.mark.parametrize(
    "source",
    [
        '"""Return the store whose tag differs; a foretold, whole, holy underlay."""\n',
        '"""Call ``say`` or `tell`."""\n',
        "x = 'nobody is told who lies'\n",
        "def say(who):\n    nobody = who\n    return nobody\n",
        "x = 1  # noqa: S603\n",
    ],
)
def test_code_strings_and_pragmas_are_free(language, source):
    assert found(language, source) == []


def test_third_assignment_on_line_is_found(language):
    source = "A, B, C = 1, 2, 3\ndef f():\n    a, b = 1, 2\n    c, d, e = g()\n    a, b, c = 1, 2, 3\n"
    assert language.check_assignments(source) == [(5, "assignments", "more than 2 on a line")]


def test_comprehension_within_another_is_found(language):
    fault = (2, "comprehension", "one within another; name the inner one, or write a loop")
    for source in (
        "[[b for b in a] for a in x]",
        "{a for a in (b for b in x)}",
        "{a: 1 for a in x if any(b for b in a)}",
        "(f(lambda: {b: 1 for b in a}) for a in x)",
    ):
        assert language.check_comprehensions(f"\n{source}\n") == [fault]
    assert language.check_comprehensions("a = [b for c in x for b in c]\nf(d for d in x)[[e for e in x][0]]\n") == []


def test_first_line_is_short_and_begins_plainly(language):
    twelve = "One two three four five six seven eight nine ten eleven twelve."
    assert found(language, f'"""{twelve}"""\n') == []
    assert found(language, f'"""{twelve[:-1]} thirteen."""\n') == [(1, "first-line")]
    assert found(language, f'"""Short.\n\n{twelve[:-1]} thirteen.\n"""\n') == []
    for opening in ("What", "Which", "How", "Where", "Whose"):
        assert (2, "first-line") in found(language, f'def f():\n    """{opening} it is."""\n')
    assert found(language, 'class A:\n    """However, whatever and whichever."""\n') == []


def test_attribute_docstring_begins_plainly_at_any_length(language):
    assert found(language, f'LIMIT = 1\n"""{"Seconds " * 13}."""\n') == []
    assert found(language, 'LIMIT = 1\n"""How long it waits."""\n') == [(2, "first-line")]
    assert found(language, 'class A:\n    """A."""\n\n    x: int\n    """Which one."""\n') == [(5, "first-line")]


def test_test_name_has_eight_words_at_most(language):
    eight = "test_one_two_three_four_five_six_seven_eight"
    assert found(language, f"def {eight}(): ...\n") == []
    assert found(language, f"async def {eight}_nine(): ...\n") == [(1, "test-name")]


def test_word_in_name_of_test_is_found(language):
    assert found(language, "def test_rank_is_told(): ...\ndef test_fold_is_whole(): ...\n") == [(1, "told")]


@pytest.mark.parametrize(
    ("suffix", "text", "line"),
    [
        (".inc", 'int x;\n// It lies there.\nauto y = "nobody lies";  /* A rank\nwho ends */\n', 4),
        (".toml", 'x = "#nobody told"\n# It lies there.\nurl = "a#lies"\ny = 1 # A rank who ends.\n', 4),
        ("", 'all:\n# It lies there.\n\techo "nobody"\n\t@true # A rank who ends.\n', 4),
    ],
)
def test_word_in_comment_of_other_file_is_found(language, suffix, text, line):
    findings = [(each.line, each.rule) for each in language.check_comments(text, suffix)]
    assert findings == [(2, "lies"), (line, "who")]


@pytest.mark.parametrize(
    "subject", ["storage: refuse credentials in URLs", "train, ranks: end at SIGTERM", "docs/dev: add `make help`"]
)
def test_subject_of_area_verb_object_passes(language, subject):
    assert language.check_subject(subject) is None


@pytest.mark.parametrize(
    "subject",
    [
        "Storage: refuse credentials",
        "refuse credentials in URLs",
        "storage: Refuse credentials",
        "storage:refuse credentials",
        "storage: refuse",
        "storage: refuse credentials.",
        "",
        f"storage: refuse {'x' * 60}",
    ],
)
def test_other_subject_is_refused(language, subject):
    assert language.check_subject(subject) is not None


def test_subject_of_72_characters_is_the_longest(language):
    subject = f"storage: refuse {'x' * 56}"
    assert len(subject) == 72
    assert language.check_subject(subject) is None
    assert language.check_subject(f"{subject}x") == "73 characters; at most 72"


# ---- documents


def test_word_in_document_is_found_by_line(language):
    text = "# Title\n\nThe rank is told\nwhat `nobody` says.\n\n| a | lies |\n"
    assert [(each.line, each.rule) for each in language.check_document(text)] == [(3, "told"), (4, "said"), (6, "lies")]


@pytest.mark.parametrize(
    "text",
    [
        "```\nnobody is told\n```\n",
        "* item\n\n  ```yaml\n  say: nobody\n  ```\n",
        "Run `pbg say\nnobody`.\n",
        "[alerts](airflow.md#who-is-told) and <!-- nobody -->.\n",
        "Readers who follow it, and a user to whom it matters.\n",
    ],
)
def test_code_links_and_people_of_documents_are_free(language, text):
    assert language.check_document(text) == []


def test_word_for_people_is_found_in_documents(language):
    assert [each.rule for each in language.check_document("Whoever resumes.\n```\ncode\n```\nWhomever.\n")] == [
        "who",
        "who",
    ]


def test_files_include_documents_of_all_folders(language):
    found = {str(path.relative_to(language.REPOSITORY)) for path in language.files()}
    assert {"README.md", "docs/gates.md", "docs/dev/glossary.md", "pbg_tasks/errors.py"} <= found
    assert {"Makefile", "pyproject.toml", "pbg_tasks/native/step.hpp", ".ci/run", "docker/compose.yaml"} <= found


def test_markdown_outside_documents_is_not_checked(language):
    outside = language.REPOSITORY / "tests" / "notes.md"
    assert language.checked([outside, language.REPOSITORY / "README.md"]) == [language.REPOSITORY / "README.md"]


# ---- the command


def run(*arguments, script=SCRIPT):
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_message_hook_checks_the_first_line(tmp_path):
    message = tmp_path / "message"
    message.write_text("storage: refuse credentials in URLs\n\nNobody was told.\n")
    assert run("--message", message) == (0, "")
    message.write_text("Fix\n")
    assert run("--message", message)[0] == 1


def test_command_checks_files_and_commits(tmp_path):
    """In a repository of its own, with the script in its place."""
    script = tmp_path / ".ci" / "language.py"
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)
    source = tmp_path / "pbg_tasks" / "a.py"
    source.parent.mkdir()
    (tmp_path / "setup.py").write_text("")
    source.write_text('"""Nobody."""\n')

    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = [str(shutil.which("git")), "-C", str(tmp_path), *identity, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "Old subjects are free.")
    since = git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "storage: refuse credentials")
    status, text = run("--since", since, script=script)
    assert status == 1
    assert "pbg_tasks/a.py:1: nobody: 'Nobody'" in text
    source.write_text('"""Module."""\n')
    assert run("--since", since, script=script)[0] == 0
    git("commit", "-q", "--allow-empty", "-m", "Fixed it")
    status, text = run("--since", since, script=script)
    assert status == 1
    assert "'Fixed it': not of the form `area: verb object`" in text
    assert "Old subjects" not in text
    status, text = run("--since", "0" * 40, script=script)
    assert status == 0
    assert "no commit was checked" in text
    source.write_text('"""Nobody told."""\n')
    status, text = run(source, script=script)
    assert status == 1
    assert "1 files, 2 findings" in text
