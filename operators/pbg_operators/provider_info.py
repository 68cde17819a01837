"""Description of this package under *Providers* in Airflow."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from pbg_tasks import __version__

_CONNECTION: dict[str, Any] = {
    "connection-type": "pbg",
    "hook-class-name": "pbg_operators.hook.StoreHook",
    "hook-name": "PBG store",
    "ui-field-behaviour": {
        "hidden-fields": ["host", "port", "schema"],
        "relabeling": {"login": "Access key ID", "password": "Secret access key"},
        "placeholders": {"login": "empty: the role of the worker"},
    },
    "conn-fields": {
        "store": {
            "label": "Store",
            "description": "Place that the button Test reads and writes, such as s3://bucket/graphs or a directory.",
            "schema": {"type": ["string", "null"]},
        },
        "endpoint_url": {
            "label": "Endpoint",
            "description": "Of an S3 server other than Amazon's, such as https://minio.example.org:9000.",
            "schema": {"type": ["string", "null"]},
        },
        "region_name": {
            "label": "Region",
            "description": "Such as eu-central-1; empty: that of the worker.",
            "schema": {"type": ["string", "null"]},
        },
        "allow_http_endpoint": {
            "label": "Unencrypted hosts",
            "description": "Hosts, separated by commas, whose endpoint may be http outside a private network.",
            "schema": {"type": ["string", "null"]},
        },
        "aws_session_token": {
            "label": "Session token",
            "description": "Of temporary keys.",
            "schema": {"type": ["string", "null"], "format": "password"},
        },
        "profile_name": {
            "label": "Profile",
            "description": "Of the worker's AWS configuration, in place of keys.",
            "schema": {"type": ["string", "null"]},
        },
    },
}
"""Our type of connections, with what its form asks for."""


def _links() -> dict[str, str]:
    """Return the address of the documentation, if the package names one."""
    try:
        urls = metadata("pbg-tasks").get_all("Project-URL") or []
    except PackageNotFoundError:
        return {}
    named = dict(url.split(", ", 1) for url in urls)
    return {"external-doc-url": named["Documentation"]} if "Documentation" in named else {}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, by Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "pbg-tasks",
        "name": "PBG",
        "description": "Nightly embeddings of large multi-relation graphs in PyTorch-BigGraph's formats.",
        "versions": [__version__],
        "integrations": [{"integration-name": "PBG", "tags": ["software"], **_links()}],
        "operators": [
            {
                "integration-name": "PBG",
                "python-modules": [
                    "pbg_operators.task",
                    "pbg_operators.plan",
                    "pbg_operators.gate",
                    "pbg_operators.publish",
                    "pbg_operators.export",
                    "pbg_operators.promote",
                    "pbg_operators.report",
                    "pbg_operators.train_job",
                    "pbg_operators.group",
                    "pbg_operators.watch",
                    "pbg_operators.redo",
                    "pbg_operators.tune",
                ],
            }
        ],
        "hooks": [{"integration-name": "PBG", "python-modules": ["pbg_operators.hook"]}],
        "connection-types": [_CONNECTION],
        "triggers": [
            {"integration-name": "PBG", "python-modules": ["pbg_operators.kubernetes.trigger", "pbg_operators.watch"]}
        ],
        "extra-links": ["pbg_operators.link.RunLink"],
        "config": {
            "pbg": {
                "description": "Nightly re-embedding",
                "options": {
                    "graphs_folder": {
                        "description": "Folder of graph specs (*.yaml), one DAG each. PBG_GRAPHS goes before it.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/etc/pbg/graphs",
                        "default": "",
                    },
                    "lookup_bytes": {
                        "description": "Files of a release that the look-up of neighbours may copy to the API server.",
                        "version_added": "0.1.0",
                        "type": "integer",
                        "example": None,
                        "default": "536870912",
                    },
                },
            }
        },
    }
