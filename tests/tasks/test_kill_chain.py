from __future__ import annotations

from tests.kill_chain import kill_often


def test_chain_killed_at_random_ends_as_undisturbed(tmp_path, monkeypatch):
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path))  # restored at the end: kill_often sets it
    findings = kill_often(tmp_path, kills=5, seed=3, stores=["local"])
    assert findings.problems == []
    assert sum(findings.kills.values()) == 5
    assert findings.releases_read
