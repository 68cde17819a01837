"""Destination of a task's link."""

from __future__ import annotations

import pytest

from pbg_operators.link import browsable


@pytest.mark.parametrize(
    ("run", "environment", "link"),
    [
        ("s3://b/g/runs/d 1", {"AWS_ENDPOINT_URL": "http://h:1/"}, "http://h:1/b/g/runs/d%201/spec.json"),
        (
            "s3://b/g/runs/d",
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ENDPOINT_URL_S3": "http://s3:2"},
            "http://s3:2/b/g/runs/d/spec.json",
        ),
        ("s3://b/g/runs/d", {}, "https://s3.console.aws.amazon.com/s3/buckets/b?prefix=g/runs/d/"),
        ("/data/g/runs/d", {}, "file:///data/g/runs/d"),
        ("file:///data/g/runs/d", {}, "file:///data/g/runs/d"),
    ],
)
def test_run_is_found_by_a_browser(run, environment, link):
    assert browsable(run, environment) == link
