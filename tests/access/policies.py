"""The policy documents of docker/policies, and an evaluator of what they permit.

The evaluator knows the part of IAM's language that the documents use and refuses every other, so that a document cannot
contain more than is checked here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.docker.files import DOCKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.access.recording import Permission

POLICIES = DOCKER / "policies"
ROLES = ("prepare", "train", "publish", "reader", "gc")
BUCKET, PREFIX = "graphs", "shop/"
SNAPSHOT_BUCKET, SNAPSHOT_FOLDER = "raw", "lake/shop"
_ELEMENTS = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}

Document = dict[str, Any]
ALLOW_ALL: Document = {
    "Sid": "All",
    "Effect": "Allow",
    "Action": ["s3:PutObject", "s3:GetObject"],
    "Resource": ["arn:aws:s3:::*"],
}
"""A statement that permits what the bucket's policy may deny."""


def load(name: str) -> Document:
    """Return a policy with its placeholders filled in, as the docs do."""
    text = (POLICIES / f"{name}.json").read_text()
    for placeholder, value in (
        ("@BUCKET@", BUCKET),
        ("@PREFIX@", PREFIX),
        ("@SNAPSHOT_BUCKET@", SNAPSHOT_BUCKET),
        ("@SNAPSHOT_FOLDER@", SNAPSHOT_FOLDER),
    ):
        text = text.replace(placeholder, value)
    document: Document = json.loads(text)
    assert "@" not in text, text
    return document


def joined(*names: str) -> Document:
    """Return one document with the statements of several policies."""
    statements = [dict(statement) for name in names for statement in load(name)["Statement"]]
    for number, statement in enumerate(statements):
        statement["Sid"] = f"{statement['Sid']}{number}"
    return {"Version": "2012-10-17", "Statement": statements}


def permits(permission: Permission, identity: Document, bucket: Document | None = None) -> bool:
    """Evaluate a permission: explicitly denied, allowed, or denied for lack of statements.

    An explicit deny wins over any allow.
    """
    of_identity = list(matching(permission, identity))
    everything = of_identity + (list(matching(permission, bucket)) if bucket else [])
    return not any(each["Effect"] == "Deny" for each in everything) and bool(of_identity)


def matching(permission: Permission, document: Document) -> Iterator[Document]:
    """Return the statements of a document that apply to a permission.

    Raises:
        ValueError: a statement uses something that is not known here.
    """
    for statement in document["Statement"]:
        if unknown := statement.keys() - _ELEMENTS:
            raise ValueError(f"{statement['Sid']}: {sorted(unknown)} is not evaluated here")
        if statement.get("Principal", "*") != "*" or statement["Effect"] not in {"Allow", "Deny"}:
            raise ValueError(f"{statement['Sid']}: only statements for every principal are evaluated here")
        if permission.action in statement["Action"] and any(
            like(pattern, f"arn:aws:s3:::{permission.resource}") for pattern in statement["Resource"]
        ):
            conditions = statement.get("Condition", {})
            if all(_holds(operator, keys, permission.conditions) for operator, keys in conditions.items()):
                yield statement


def like(pattern: str, value: str) -> bool:
    """Match a pattern of IAM.

    ``*`` is any text, slashes included, and ``?`` is one character.
    """
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(escaped, value, re.DOTALL) is not None


def _holds(operator: str, keys: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    """Evaluate one operator of a condition: all its keys have to fit.

    A key that the request lacks fits ``Null`` only.
    """
    if operator == "Null":
        return all((key not in given) == (wanted == "true") for key, wanted in keys.items())
    if operator == "Bool":
        return all(given.get(key) == wanted for key, wanted in keys.items())
    if operator == "StringLike":
        return all(key in given and any(like(each, given[key]) for each in wanted) for key, wanted in keys.items())
    raise ValueError(f"condition operator {operator} is not evaluated here")
