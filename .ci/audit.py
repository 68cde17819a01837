"""Known vulnerabilities of everything that is locked.

Fails on those that are not listed with a reason.

    make audit       # asks PyPI, then OSV where PyPI has no answer

Where no service answers there is nothing to fail on: then one line reports that nothing was checked. A package that the
service does not know is not checked either, and named: ``pip-audit`` alone would call it free of vulnerabilities.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from locks import RELEASED, REPOSITORY, read

PROCESSES = 8
"""Number of processes that ask at once: one asks for package after package, some 0.2 s each."""
SERVICES = ("pypi", "osv")


@dataclass(slots=True)
class Answers:
    """Answers of the services.

    Attributes:
        checked: packages and versions that a service knows.
        found: (package, version, id, aliases, fixed in) of each vulnerability.
    """

    checked: set[tuple[str, str]] = field(default_factory=set)
    found: list[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def add(self, report: dict[str, Any]) -> None:
        """Add a report of ``pip-audit``.

        A package that it skipped was not checked.
        """
        for package in report["dependencies"]:
            if "skip_reason" in package:
                continue
            self.checked.add((package["name"], package["version"]))
            for each in package["vulns"]:
                facts = (tuple(each.get("aliases", ())), tuple(each.get("fix_versions", ())))
                self.found.append((package["name"], package["version"], each["id"], *facts))


def ask(service: str, pins: set[tuple[str, str]], *, deadline: float, osv_url: str | None = None) -> Answers:
    """Ask a service about packages, in several processes.

    It ends at a moment of the monotonic clock.
    """
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--format=json", "--timeout=10"]
    command += ["--progress-spinner=off", f"--vulnerability-service={service}"]
    command += [f"--osv-url={osv_url}"] if osv_url else []
    lines, answers = [f"{name}=={version}\n" for name, version in sorted(pins)], Answers()
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number in range(min(PROCESSES, len(lines))):
            part, report = Path(folder, f"{number}.txt"), Path(folder, f"{number}.json")
            part.write_text(
                "".join(lines[number::PROCESSES])
            )  # never two versions of one package, which pip-audit refuses
            asking = [*command, f"--requirement={part}", f"--output={report}"]
            process = subprocess.Popen(asking, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running.append((process, report))
        for process, report in running:
            try:
                process.wait(timeout=max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if report.exists() and report.stat().st_size:  # written at the end, so complete or absent
                answers.add(json.loads(report.read_text()))
    return answers


def exceptions(path: Path) -> list[dict[str, Any]]:
    """Read the vulnerabilities that are accepted.

    Raises:
        ValueError: one lacks its reason or its date.
    """
    listed: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("exception", [])
    for each in listed:
        if each.keys() != {"id", "package", "reason", "expires"} or not str(each["reason"]).strip():
            raise ValueError(f"{path}: {each.get('id', each)} takes exactly id, package, reason and expires")
        if type(each["expires"]) is not dt.date:
            raise ValueError(f"{path}: {each['id']}: expires takes a date such as 2027-01-31")
    return listed


def judge(answers: Answers, accepted: list[dict[str, Any]], today: dt.date) -> list[str]:
    """Return a line for each vulnerability that fails the audit."""
    failing = []
    for package, version, name, aliases, fixed in answers.found:
        entry = next((e for e in accepted if e["package"] == package and e["id"] in {name, *aliases}), None)
        if entry is not None and today <= entry["expires"]:
            continue
        past = f"; its exception ended on {entry['expires']}" if entry else ""
        failing.append(f"{package} {version}: {name}, fixed in {', '.join(fixed) or 'no version'}{past}")
    return failing


def main() -> int:
    """Audit the locks and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("locks", nargs="*", default=sorted({path for paths in RELEASED.values() for path in paths}))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--osv-url", help="ask this OSV service only")
    parser.add_argument("--exceptions", type=Path, default=REPOSITORY / ".ci" / "audit-exceptions.toml")
    given = parser.parse_args()
    try:
        accepted = exceptions(given.exceptions)
        listed = [pin for path in given.locks for pin in read(path).values()]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pins = {(pin.name, pin.version.partition("+")[0]) for pin in listed}  # services know no local builds
    deadline = time.monotonic() + given.seconds
    answers = Answers()
    for service in ("osv",) if given.osv_url else SERVICES:
        if not answers.checked and time.monotonic() < deadline:
            answers = ask(service, pins, deadline=deadline, osv_url=given.osv_url)
    failing = judge(answers, accepted, dt.datetime.now(dt.UTC).date())
    for line in failing:
        print(f"audit: {line}")
    if not answers.checked:
        print(f"audit: no vulnerability service answered for any of {len(pins)} packages; nothing was checked")
        return 0
    unknown = [f"{name} {version}" for name, version in sorted(pins - answers.checked)]
    rest = f"; not checked: {', '.join(unknown)}" if unknown else ""
    print(f"audit: {len(answers.checked)} of {len(pins)} packages checked, {len(failing)} vulnerabilities{rest}")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
