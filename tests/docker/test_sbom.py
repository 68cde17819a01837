"""The bills of materials of the real tool, compared with locks."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.docker.files import DOCKER, IMAGES, REPOSITORY, installed, stages

PYTHON = REPOSITORY / ".venv.audit" / "bin" / "python"
READY = REPOSITORY / ".venv.audit" / ".ready"  # Make writes it once all is installed
LOCKS = {"python": {"requirements.lock", "docker/torch.lock"}}


def locks(name):
    """Return the locks that an image is installed from, by its Dockerfile."""
    if name in LOCKS:
        return LOCKS[name]
    (built,) = re.findall(r"COPY --from=(\S+) /opt/pbg ", "\n".join(stages()[name]))
    return set(re.findall(r"--requirement (docker/\S+)", "\n".join(stages()[built])))


def entries(name):
    """Return (name, version, hashes) of each package of an image's locks."""
    found = set()
    for lock in locks(name):
        for block in re.split(r"\n(?=[A-Za-z])", (REPOSITORY / lock).read_text()):
            if (pin := re.match(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s\\;]+)", block)) is not None:
                found.add((pin[1], pin[2], frozenset(re.findall(r"sha256:([0-9a-f]{64})", block))))
    return found


@pytest.mark.parametrize("name", ["python", *IMAGES])
def test_bill_lists_packages_of_the_locks(tmp_path, name):
    if not READY.exists():
        pytest.skip(".venv.audit: not made yet (make sbom)")
    command = [str(PYTHON), str(REPOSITORY / ".ci" / "sbom.py"), name, f"--into={tmp_path}"]
    command += (
        [] if name == "train" else ["--no-validate"]
    )  # one bill checked against the schema, which takes 5 s, stands for all
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    bill = json.loads((tmp_path / f"{name}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = [
        (each["name"], each["version"], frozenset(_hashes(each)), each["purl"].startswith("pkg:pypi/"))
        for each in bill["components"]
    ]
    assert len(listed) == len(set(listed))
    assert set(listed) == {(*entry, True) for entry in entries(name)}
    assert ("torch" in {each[0] for each in listed}) == (name == "python" or "torch" in installed(name))


def test_every_lock_is_in_a_bill():
    named = set().union(*(locks(name) for name in IMAGES))
    assert named == {f"docker/{path.name}" for path in DOCKER.glob("*.lock")}


def _hashes(component):
    return [each["content"] for reference in component["externalReferences"] for each in reference.get("hashes", [])]
