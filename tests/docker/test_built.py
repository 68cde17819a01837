"""Locks and image files read as an attacker would read them.

Each rule finds its example, and nothing in the repository.
"""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from tests.docker.files import DOCKER, IMAGES, REPOSITORY, stages

LOCKS = sorted(
    path
    for path in [*REPOSITORY.glob("*.lock"), *DOCKER.glob("*.lock"), *REPOSITORY.glob(".ci/*.lock")]
    if path.is_file()
)
LOCKED = re.compile(r"[A-Za-z0-9_.-]+(\[[\w,-]+\])?==[\w.+!-]+( ; [^\\\n]+)?( \\\n +--hash=sha256:[0-9a-f]{64})+\n?")
PRIVATE = r"(?i:secret|token|passw|credential|access_?key|api_?key)"
DOCKERFILE, SCRIPT, WORKFLOW, RESOURCE, PYTHON = (
    r"(.*/)?Dockerfile[^/]*",
    r"Makefile|\.ci/run|.*\.sh|(.*/)?Dockerfile[^/]*",
    r"\.github/.*\.ya?ml|\.gitlab-ci\.yml",
    r"docker/kubernetes/.*\.yaml|docker/compose\.yaml",
    r"setup\.py|(pbg_tasks|operators|dags|\.ci)/.*\.py",
)
RULES = {
    "download into a shell": (SCRIPT, r"(curl|wget)\b[^\n]*\|\s*(sudo\s+)?\w*sh\b", "curl -s https://a.example/x | sh"),
    "package of another index": (SCRIPT, r"--(extra-)?index-url|--trusted-host", "pip install --extra-index-url x y"),
    "unchecked transport": (
        SCRIPT,
        r"curl\b.* (-k|--insecure)\b|--no-check-certificate",
        "curl -s -k https://a.example",
    ),
    "text that is run": (SCRIPT, r"(?m)^\s*eval\s", 'eval "$1"'),
    "rights for all": (SCRIPT, r"chmod (-R )?(0?777|a\+w)|--privileged", "chmod 777 /opt/pbg"),
    "base that is no argument": (
        DOCKERFILE,
        r"(?m)^FROM (?!\$\{PYTHON_IMAGE\}|[a-z-]+ AS )",
        "FROM python:3.11 AS base",
    ),
    "stage of another image": (DOCKERFILE, r"COPY --from=\S*[/:.]", "COPY --from=a.example/tool:1 /x /x"),
    "file of a network": (DOCKERFILE, r"(?m)^ADD ", "ADD https://a.example/x.tar.gz /"),
    "secret in a layer": (DOCKERFILE, rf"(?m)^(ARG|ENV)\s.*{PRIVATE}", "ARG AWS_SECRET_ACCESS_KEY"),
    "root at the end": (DOCKERFILE, r"(?m)^USER (?!65532:65532$)", "USER root"),
    "action that may move": (
        WORKFLOW,
        r"uses:\s*(?!\./)[^\s@]+(@(?![0-9a-f]{40}\b)|\s|$)",
        "uses: actions/checkout@v4",
    ),
    "rights of the base": (WORKFLOW, r"pull_request_target|workflow_run", "on: pull_request_target"),
    "text of a stranger": (WORKFLOW, r"\$\{\{\s*github\.(event|head_ref)", "run: echo ${{ github.event.issue.title }}"),
    "token that writes": (WORKFLOW, r"write-all|contents:\s*write", "permissions: write-all"),
    "image by tag": (RESOURCE, r"(?m)^\s*(- )?image: (?!\S+@sha256:[0-9a-f]{64}$)", "  image: pbg-train:latest"),
    "rights of the machine": (
        RESOURCE,
        r"privileged: true|hostNetwork: true|hostPID: true|hostPath:|docker\.sock|allowPrivilegeEscalation: true",
        "privileged: true",
    ),
    "token of a pod": (RESOURCE, r"automountServiceAccountToken: true", "automountServiceAccountToken: true"),
    "role of everything": (RESOURCE, r"""(verbs|resources):\s*(\[['"]?\*|\n\s*- ['"]?\*)""", "verbs: ['*']"),
    "shell of a program": (PYTHON, r"shell=True|os\.(system|popen)\(", "subprocess.run(text, shell=True)"),
    "object of a file": (
        PYTHON,
        r"\bpickle\.loads?\(|\byaml\.(unsafe_load|full_load)\(|(?<![\w.])(eval|exec)\(|\bmarshal\.loads?\(",
        "pickle.loads(data)",
    ),
    "certificate not checked": (
        PYTHON,
        r"verify=False|_create_unverified|CERT_NONE",
        "requests.get(url, verify=False)",
    ),
}


@pytest.fixture(scope="module")
def files():
    """Texts of all files of the repository, by their paths."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [path for path in listed.stdout.splitlines() if not path.startswith(("tests/", "docs/"))]
    return {path: (REPOSITORY / path).read_text("utf-8", "replace") for path in paths if (REPOSITORY / path).is_file()}


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_broken_by_its_example_alone(files, rule):
    kind, pattern, example = RULES[rule]
    assert re.search(pattern, example), "the rule would not find its own example"
    read = {path: text for path, text in files.items() if re.fullmatch(kind, path)}
    assert read or kind == WORKFLOW
    found = {path: match[0] for path, text in read.items() if (match := re.search(pattern, text))}
    assert found == {}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_lock_names_versions_and_hashes_only(lock):
    """A lock names no host, index, folder or repository.

    Any server may answer, and no private one is given away.
    """
    text = re.sub(r"(?m)^ *#.*\n", "", lock.read_text())
    rest = LOCKED.sub("", text)
    assert rest.strip() == "", rest[:200]
    assert len(LOCKED.findall(text)) >= 1
    assert "://" not in lock.read_text()


def test_locks_are_the_known_ones():
    names = {str(path.relative_to(REPOSITORY)) for path in LOCKS}
    assert names >= {"requirements.lock", ".ci/audit.lock", *(f"docker/{each}.lock" for each in ("train", "airflow"))}


@pytest.mark.parametrize("line", ["boto3>=1.43", "boto3==1.43", "boto3 @ https://a.example/b.whl", "-r other.txt"])
def test_line_without_a_hash_is_no_lock(line):
    assert LOCKED.sub("", line) == line


def test_installs_without_hash_are_the_documented_ones():
    """Each install without a hash has its sentence in docs/security.md."""
    text = "\n".join((REPOSITORY / path).read_text() for path in ("Makefile", ".ci/run", "docker/Dockerfile"))
    installs = re.findall(r"(?:(?:pip|PIP\)) install|install\.py \$\(PY\)) ([^\n;&}]*)", re.sub(r"\\\n", " ", text))
    unchecked = {each.strip() for each in installs if "--require-hashes" not in each}
    assert unchecked == {
        "--no-compile $(TORCH)",
        "--no-deps --editable .",
        "--quiet uv",
        "${TORCH",
        "--no-deps --no-build-isolation .",
    }


@pytest.mark.parametrize("image", IMAGES)
def test_image_keeps_no_trace_of_its_build(image):
    """A build may get a second index or a certificate.

    Only stages that are thrown away know them.
    """
    assert not [line for line in stages()[image] if re.match(rf"(ARG|ENV)\s.*(PIP_|{PRIVATE})", line)]
    assert any("PIP_EXTRA_INDEX_URL" in line for line in stages()["venv"])


def test_services_on_a_laptop_get_secrets_from_outside():
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    given = [
        (name, value)
        for service in services.values()
        for name, value in service.get("environment", {}).items()
        if re.search(PRIVATE, name)
    ]
    assert given
    assert all(re.fullmatch(r"\$\{\w+:\?\}", value) for _, value in given)
