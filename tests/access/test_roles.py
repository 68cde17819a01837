"""The roles on a real S3 server that enforces their policies.

Each role has the permissions it needs, and no others.
"""

from __future__ import annotations

import json
from functools import partial

import boto3
import pytest

from pbg_tasks.errors import AccessError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import TASKS
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.release.repartition import repartition
from tests.access.chain import ROLE_OF, STORE, released_run
from tests.access.policies import (
    ALLOW_ALL,
    BUCKET,
    PREFIX,
    ROLES,
    SNAPSHOT_BUCKET,
    SNAPSHOT_FOLDER,
    like,
    load,
    matching,
    permits,
)
from tests.access.recording import Permission
from tests.commands import pbg

pytestmark = pytest.mark.s3

GRAPH = f"{BUCKET}/{PREFIX}".rstrip("/")
ACCESS = {
    #                                                    reads     writes    deletes
    f"{GRAPH}/channels/x/CURRENT.json":         ("PTURG", "U",      ""),
    f"{GRAPH}/channels/x/releases/99.json":     ("PTURG", "U",      "G"),
    f"{GRAPH}/channels/x/pins/99.json":         ("PTURG", "U",      "U"),
    f"{GRAPH}/channels/x/skipped/x.json":       ("PTURG", "PTU",    ""),
    f"{GRAPH}/channels/x/unplanned/x/x.json":   ("PTURG", "PU",     "P"),
    f"{GRAPH}/gc/x.json":                                ("PTUG",  "PTUG",   "G"),
    f"{GRAPH}/.probe/x":                                 ("PTUG",  "PG",     "PG"),
    f"{GRAPH}/runs/x/spec.json":                         ("PTURG", "P",      "G"),
    f"{GRAPH}/runs/x/planned.json":                      ("PTURG", "P",      "G"),
    f"{GRAPH}/runs/x/held.json":                         ("PTUG",  "PTU",    "G"),
    f"{GRAPH}/runs/x/refused.json":                      ("PTURG", "PTU",    "G"),
    f"{GRAPH}/runs/x/failed.json":                       ("PTURG", "PTU",    "G"),
    f"{GRAPH}/runs/x/snapshot/edge_hashes.parquet":      ("PTU",   "P",      "G"),
    f"{GRAPH}/runs/x/entities/entity_count_n_0.txt":     ("PTU",   "P",      "G"),
    f"{GRAPH}/runs/x/edges/train/edges_0_0.h5":          ("PTU",   "P",      "G"),
    f"{GRAPH}/runs/x/start/embeddings_n_0.v0.h5":        ("PTU",   "T",      "G"),
    f"{GRAPH}/runs/x/candidates":                        ("PTU",   "T",      "G"),
    f"{GRAPH}/runs/x/eval/x.counts":                    ("PTU",   "T",      "G"),
    f"{GRAPH}/runs/x/checkpoint/HEAD.json":              ("PTURG", "T",      "TG"),
    f"{GRAPH}/runs/x/checkpoint/embeddings_n_0.v1.h5":   ("PTU",   "T",      "TG"),
    f"{GRAPH}/runs/x/release/embeddings_n_0.v1.h5":      ("PTUR",  "T",      "G"),
    f"{GRAPH}/runs/x/results/plan.json":                 ("PTURG", "P",      "G"),
    f"{GRAPH}/runs/x/results/bucket.json":               ("PTURG", "P",      "G"),
    f"{GRAPH}/runs/x/results/train.json":                ("PTURG", "T",      "G"),
    f"{GRAPH}/runs/x/results/eval.json":                 ("PTURG", "T",      "G"),
    f"{GRAPH}/runs/x/results/eval-1-of-2.json":          ("PTURG", "T",      "G"),
    f"{GRAPH}/runs/x/results/gate.json":                 ("PTURG", "U",      "G"),
    f"{GRAPH}/runs/x/results/publish.json":              ("PTURG", "U",      "G"),
    f"{GRAPH}/runs/x/results/export-npy.json":           ("PTURG", "U",      "G"),
    f"{GRAPH}/runs/x/decisions/gate.json":               ("PTURG", "U",      "G"),
    f"{GRAPH}/runs/x/announced/publish.json":            ("PTUG",  "U",      "G"),
    f"{GRAPH}/runs/x/tune/x/search.json":               ("PTURG", "PT",     "G"),
    f"{GRAPH}/runs/x/tune/x/rung-0.json":               ("PTURG", "T",      "G"),
    f"{GRAPH}/runs/x/tune/x/best.yaml":                 ("PTU",   "T",      "G"),
    f"{GRAPH}/runs/x/tune/x/trials/x/rung-0.json":      ("PTURG", "T",      "G"),
    f"{GRAPH}/runs/x/tune/x/trials/x/checkpoint/x.h5":  ("PTU",   "T",      "TG"),
    f"{GRAPH}/runs/x/report/index.html":                 ("PTUR",  "U",      "G"),
    f"{GRAPH}/report/production/index.html":             ("PTUR",  "U",      ""),
    f"{GRAPH}/exports/npy/x/n.npy":                      ("PTUR",  "U",      "UG"),
    f"{GRAPH}/sinks/lancedb/n.lance/data/x.lance":       ("PTUR",  "U",      "U"),
    f"{SNAPSHOT_BUCKET}/{SNAPSHOT_FOLDER}/x.tsv":                          ("P",     "",       ""),
    f"{BUCKET}/other/channels/x/CURRENT.json":            ("",      "",       ""),
}  # fmt: skip
"""For each key the roles that may read, write and delete it: Prepare, Train, pUblish, Reader, Gc."""
LETTERS = dict(zip(ROLES, "PTURG", strict=True))
ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
AFTER_A_FAILURE = {"s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}
"""Actions taken only after a failed upload, or by a server that does not report when an upload began."""
IN_A_RACE = {("gc", "TellWhatIsAbsent")}
"""Actions taken only by a collection whose objects another process removes at the same time."""


def taken_by(recorded, role):
    return [permission for _, permission, _ in recorded.taken[role]]


def test_chain_under_its_roles_meets_no_refusal(recorded):
    refused = [(role, *each) for role, taken in recorded.taken.items() for each in taken if each[2] == 403]
    assert not refused
    assert set(recorded.taken) == set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_policies_permit_all_that_was_recorded(recorded, role):
    identity, bucket = load(role), load("bucket")
    taken = taken_by(recorded, role)
    assert taken
    assert not [each for each in taken if not permits(each, identity, bucket)]


@pytest.mark.parametrize("role", ROLES)
def test_each_resource_named_by_a_policy_is_used(recorded, role):
    """A permission that no task takes any more is one too many."""
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


@pytest.mark.parametrize("role", ROLES)
def test_policy_without_a_statement_refuses_a_recorded_request(recorded, role):
    policy = load(role)
    taken = taken_by(recorded, role)
    for statement in policy["Statement"]:
        if not set(statement["Action"]) <= AFTER_A_FAILURE and (role, statement["Sid"]) not in IN_A_RACE:
            rest = {**policy, "Statement": [each for each in policy["Statement"] if each is not statement]}
            assert not all(permits(each, rest) for each in taken), statement["Sid"]


def test_bucket_policy_covers_writes_that_decide(recorded):
    """Each such write is conditional, and none is a copy.

    The same write without its condition is denied.
    """
    bucket, everything = load("bucket"), {"Statement": [ALLOW_ALL]}
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


def test_every_task_of_the_chain_has_a_role():
    assert {"plan", *TASKS} <= set(ROLE_OF)
    assert set(ROLE_OF.values()) == set(ROLES)


def split(key):
    """Return the bucket and the name of a key."""
    bucket, _, name = key.partition("/")
    return bucket, name


@pytest.mark.parametrize("role", ROLES)
def test_role_on_each_prefix_permits_the_tables_actions(chain, role):
    found = {}
    with chain.role("owner"):
        owner = {bucket: open_store(f"s3://{bucket}") for bucket in {BUCKET, SNAPSHOT_BUCKET}}
        for bucket, name in map(split, ACCESS):
            owner[bucket].put(name, b"{}")
    with chain.role(role):
        own = {bucket: open_store(f"s3://{bucket}") for bucket in owner}
        for key in ACCESS:
            bucket, name = split(key)
            store = own[bucket]
            attempts = (partial(store.get, name), partial(store.put, name, b"{}"), partial(store.delete, name))
            found[key] = tuple(_permitted(attempt) for attempt in attempts)
    for bucket, name in map(split, ACCESS):
        owner[bucket].delete(name)
    assert found == {key: tuple(LETTERS[role] in letters for letters in row) for key, row in ACCESS.items()}


@pytest.mark.parametrize("role", ROLES)
def test_evaluator_decides_as_the_real_server(role):
    policy = load(role)
    for key, row in ACCESS.items():
        for action, letters in zip(ACTIONS, row, strict=True):
            permission = Permission(action, key)
            assert permits(permission, policy) == (LETTERS[role] in letters), (key, action)


@pytest.mark.parametrize("role", ROLES)
def test_role_lists_its_own_store_only(chain, role):
    with chain.role(role):
        assert list(open_store(STORE).list("channels/")) is not None
        with pytest.raises(AccessError):
            list(open_store(f"s3://{BUCKET}/other").list("channels/"))
        snapshots = open_store(f"s3://{SNAPSHOT_BUCKET}/{SNAPSHOT_FOLDER}")
        if role == "prepare":
            assert list(snapshots.list())
        else:
            with pytest.raises(AccessError):
                list(snapshots.list())


@pytest.fixture(scope="module")
def planned(recorded):
    """A run without any finished task."""
    recorded.spec()
    return recorded.plan("d5")


@pytest.mark.parametrize(
    ("role", "arguments"),
    [
        ("train", ["validate", "RUN"]),
        ("publish", ["validate", "RUN"]),
        ("reader", ["validate", "RUN"]),
        ("prepare", ["rollback", "SPEC", "--to", "2"]),
        ("train", ["rollback", "SPEC", "--to", "2"]),
        ("gc", ["rollback", "SPEC", "--to", "2"]),
        ("train", ["gc", STORE]),
        ("publish", ["gc", STORE]),
        ("reader", ["gc", STORE]),
    ],
)
def test_command_under_another_role_ends_with_status_9(recorded, planned, role, arguments):
    given = {"RUN": planned, "SPEC": str(recorded.place.spec)}
    with recorded.role("owner"):
        before = _objects(open_store(STORE))
    with recorded.role(role):
        done = pbg(*[given.get(each, each) for each in arguments])
    assert done.returncode == 9, done.stderr
    assert "refused" in done.stderr.splitlines()[-1]
    with recorded.role("owner"):
        assert _objects(open_store(STORE)) == before


def test_adopting_and_moving_rows_takes_three_roles(recorded):
    """Both commands write a run, its vectors and its release at once."""
    recorded.spec()
    run = released_run(recorded, "d3")
    other = recorded.place.spec.with_name("other.yaml")
    other.write_text(recorded.place.spec.read_text().replace("graph: toy", "graph: toy\nchannel: adopted"))
    with recorded.role("operator"):
        assert repartition(recorded.place.spec, partitions=8)["task"]
        assert adopt(f"{run}/release", f"{run}/release", other)["task"]
    with recorded.role("train"), pytest.raises(AccessError):
        repartition(recorded.place.spec, partitions=2)


def test_bucket_policy_on_seaweedfs_enforces_nothing(limited_store, chain):
    """SeaweedFS does not know the condition keys.

    The docs describe the bucket policy as one for Amazon S3 only.
    """
    limited_store.create_bucket("conditional")
    policy = json.dumps(load("bucket")).replace(f":::{BUCKET}/{PREFIX}", ":::conditional/")
    with chain.role("owner"):
        client = boto3.session.Session().client("s3", endpoint_url=limited_store.endpoint)
        client.put_bucket_policy(Bucket="conditional", Policy=policy)
        store = open_store("s3://conditional")
        assert store.put_new("runs/r/spec.json", b"{}")
        assert store.put("runs/r/spec.json", b"{}")


def _permitted(attempt):
    try:
        attempt()
    except AccessError:
        return False
    return True


def _objects(store):
    """Return tags by key, except those of holds and failures.

    A task that is refused later has put a hold on its run before, and stores its error in it.
    """
    return {info.key: info.tag for info in store.list() if not info.key.endswith(("held.json", "failed.json"))}
