"""The policy documents by themselves.

``test_roles`` compares them with the requests of a whole chain.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.access.chain import ROLE_OF
from tests.access.policies import ALLOW_ALL, BUCKET, POLICIES, PREFIX, ROLES, SNAPSHOT_BUCKET, load, permits
from tests.access.recording import Permission, permissions
from tests.docker.files import REPOSITORY


@pytest.mark.parametrize("name", [*ROLES, "bucket"])
def test_policy_names_each_action_and_no_wildcard(name):
    statements, buckets = load(name)["Statement"], (f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{SNAPSHOT_BUCKET}")
    for statement in statements:
        assert all(re.fullmatch(r"s3:[A-Za-z]+", action) for action in statement["Action"]), statement
        assert all(resource.startswith(buckets) for resource in statement["Resource"])
    sids = [statement["Sid"] for statement in statements]
    assert len(set(sids)) == len(sids)
    assert len(json.dumps(load(name), separators=(",", ":"))) < 6144, "the limit of a managed policy"


def test_policies_are_those_of_the_roles():
    assert {path.stem for path in POLICIES.glob("*.json")} == {*ROLES, "bucket"}


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("channels/production/releases/1.json", {"if-none-match"}),
        ("runs/r/spec.json", {"if-none-match"}),
        ("runs/r/results/train.json", {"if-none-match"}),
        ("runs/r/tune/s/search.json", {"if-none-match"}),
        ("runs/r/tune/s/trials/t/rung-0.json", {"if-none-match"}),
        ("runs/r/tune/s/trials/t/checkpoint/HEAD.json", {"if-match", "if-none-match"}),
        ("channels/production/CURRENT.json", {"if-match", "if-none-match"}),
        ("runs/r/checkpoint/HEAD.json", {"if-match", "if-none-match"}),
        ("gc/r.json", {"if-match", "if-none-match"}),
    ],
)
def test_bucket_policy_asks_for_the_right_condition(key, allowed, header):
    (permission,) = permissions("PUT", f"/{BUCKET}/{PREFIX}{key}", {header: "x"}, 200)
    assert permits(permission, {"Statement": [ALLOW_ALL]}, load("bucket")) == (header in allowed)


@pytest.mark.parametrize("query", ["uploads", "partNumber=1&uploadId=u"])
def test_bucket_policy_permits_beginning_uploads_in_parts(query):
    """Amazon S3 checks the condition of such uploads at their end."""
    method = "POST" if query == "uploads" else "PUT"
    (begun,) = permissions(method, f"/{BUCKET}/{PREFIX}runs/r/edges/train/e.h5?{query}", {}, 200)
    assert permits(begun, {"Statement": [ALLOW_ALL]}, load("bucket"))
    (ended,) = permissions("POST", f"/{BUCKET}/{PREFIX}runs/r/edges/train/e.h5?uploadId=u", {}, 200)
    assert not permits(ended, {"Statement": [ALLOW_ALL]}, load("bucket"))


def test_unknown_request_raises_instead_of_needing_nothing():
    with pytest.raises(ValueError, match="not known here"):
        list(permissions("PUT", f"/{BUCKET}?policy", {}, 200))
    with pytest.raises(ValueError, match="not known here"):
        list(permissions("GET", f"/{BUCKET}/key?acl", {}, 200))


@pytest.mark.parametrize(
    "statement",
    [
        {"NotAction": ["s3:GetObject"]},
        {"Condition": {"StringEquals": {"s3:prefix": "x"}}},
        {"Principal": {"AWS": "arn:aws:iam::1:user/a"}},
    ],
)
def test_evaluator_refuses_unknown_elements(statement):
    with pytest.raises(ValueError, match="evaluated here"):
        permits(Permission("s3:GetObject", "b/k"), {"Statement": [ALLOW_ALL | statement]})


def test_docs_name_the_role_of_each_command():
    text = (REPOSITORY / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ((?:`[^`]+`(?:, )?)+) \|", text, re.MULTILINE)
    listed = {command: role for role, commands in rows for command in re.findall("`([^`]+)`", commands)}
    assert listed == ROLE_OF


def test_api_server_of_docs_may_list_snapshots():
    """Its forms and *Begin a night* have the keys that are there."""
    row = re.search(r"^\| API server \| (.*) \|$", (REPOSITORY / "docs" / "security.md").read_text(), re.MULTILINE)[1]
    role, *sids, source = re.findall(r"`(\w+)`", row)
    (asked,) = permissions("GET", f"/{SNAPSHOT_BUCKET}?list-type=2&prefix=lake%2Fshop%2F", {}, 200)
    assert not permits(asked, load(role))
    added = [statement for statement in load(source)["Statement"] if statement["Sid"] in sids]
    assert permits(asked, {"Statement": added})
    assert {action for statement in added for action in statement["Action"]} == {"s3:ListBucket"}
