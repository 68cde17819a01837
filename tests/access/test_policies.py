"""The policy documents against what a whole chain was recorded to do."""

from __future__ import annotations

import json
import re

import pytest

from tests.access.chain import ROLE_OF
from tests.access.policies import BUCKET, POLICIES, PREFIX, ROLES, SNAPSHOT_BUCKET, like, load, matching, permits
from tests.access.recording import Permission, permissions
from tests.docker.files import REPOSITORY

AFTER_A_FAILURE = {"s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}
"""What only an upload that failed takes, or a server that does not say when an upload began."""
IN_A_RACE = {("gc", "TellWhatIsAbsent")}
"""What only a collection meets whose objects another removes."""


def taken_by(recorded, role):
    return [permission for _, permission, _ in recorded.taken[role]]


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


@pytest.mark.s3
@pytest.mark.parametrize("role", ROLES)
def test_policies_permit_all_that_was_recorded(recorded, role):
    identity, bucket = load(role), load("bucket")
    taken = taken_by(recorded, role)
    assert taken
    assert not [each for each in taken if not permits(each, identity, bucket)]


@pytest.mark.s3
@pytest.mark.parametrize("role", ROLES)
def test_each_resource_that_a_policy_names_is_used(recorded, role):
    """A permission that nothing takes any more is one too many."""
    policy, taken = load(role), taken_by(recorded, role)
    unused = [
        (statement["Sid"], action, resource)
        for statement in policy["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
        if action not in AFTER_A_FAILURE
        and (role, statement["Sid"]) not in IN_A_RACE
        and not any(
            each.action == action
            and like(resource, f"arn:aws:s3:::{each.resource}")
            and statement in matching(each, load(role))
            for each in taken
        )
    ]
    assert not unused


@pytest.mark.s3
@pytest.mark.parametrize("role", ROLES)
def test_without_a_statement_something_recorded_is_refused(recorded, role):
    policy = load(role)
    taken = taken_by(recorded, role)
    for statement in policy["Statement"]:
        if not set(statement["Action"]) <= AFTER_A_FAILURE and (role, statement["Sid"]) not in IN_A_RACE:
            rest = {**policy, "Statement": [each for each in policy["Statement"] if each is not statement]}
            assert not all(permits(each, rest) for each in taken), statement["Sid"]


@pytest.mark.s3
def test_bucket_policy_covers_writes_that_decide(recorded):
    """Each is conditional in fact, none is a copy, and the same write without its condition is denied."""
    bucket, everything = load("bucket"), {"Statement": [_allow_all()]}
    covered = {resource: 0 for statement in bucket["Statement"] for resource in statement["Resource"]}
    for role in ROLES:
        for each in taken_by(recorded, role):
            arn = f"arn:aws:s3:::{each.resource}"
            hit = [resource for resource in covered if each.action == "s3:PutObject" and like(resource, arn)]
            for resource in hit:
                covered[resource] += 1
                assert "s3:x-amz-copy-source" not in each.conditions, "S3 may refuse to copy below such a policy"
                assert permits(each, everything, bucket)
                blind = Permission(each.action, each.resource, {"s3:ObjectCreationOperation": "true"})
                if each.conditions["s3:ObjectCreationOperation"] == "true":
                    assert not permits(blind, everything, bucket), each
    assert all(covered.values()), covered


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("channels/production/releases/1.json", {"if-none-match"}),
        ("runs/r/spec.json", {"if-none-match"}),
        ("runs/r/results/train.json", {"if-none-match"}),
        ("channels/production/CURRENT.json", {"if-match", "if-none-match"}),
        ("runs/r/checkpoint/HEAD.json", {"if-match", "if-none-match"}),
        ("gc/r.json", {"if-match", "if-none-match"}),
    ],
)
def test_bucket_policy_asks_for_the_right_condition(key, allowed, header):
    (permission,) = permissions("PUT", f"/{BUCKET}/{PREFIX}{key}", {header: "x"}, 200)
    assert permits(permission, {"Statement": [_allow_all()]}, load("bucket")) == (header in allowed)


@pytest.mark.parametrize("query", ["uploads", "partNumber=1&uploadId=u"])
def test_bucket_policy_lets_uploads_in_parts_begin(query):
    """S3 takes the condition of such an upload with its end only."""
    method = "POST" if query == "uploads" else "PUT"
    (begun,) = permissions(method, f"/{BUCKET}/{PREFIX}runs/r/edges/train/e.h5?{query}", {}, 200)
    assert permits(begun, {"Statement": [_allow_all()]}, load("bucket"))
    (ended,) = permissions("POST", f"/{BUCKET}/{PREFIX}runs/r/edges/train/e.h5?uploadId=u", {}, 200)
    assert not permits(ended, {"Statement": [_allow_all()]}, load("bucket"))


def test_a_request_that_is_not_known_is_no_permission():
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
def test_evaluator_refuses_what_it_does_not_know(statement):
    with pytest.raises(ValueError, match="evaluated here"):
        permits(Permission("s3:GetObject", "b/k"), {"Statement": [_allow_all() | statement]})


def test_docs_give_each_command_the_role_of_the_tests():
    text = (REPOSITORY / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ((?:`[^`]+`(?:, )?)+) \|", text, re.MULTILINE)
    listed = {command: role for role, commands in rows for command in re.findall("`([^`]+)`", commands)}
    assert listed == ROLE_OF


def _allow_all():
    actions = ["s3:PutObject", "s3:GetObject"]
    return {"Sid": "All", "Effect": "Allow", "Action": actions, "Resource": ["arn:aws:s3:::*"]}
