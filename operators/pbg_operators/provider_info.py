"""Description of this package under *Providers* in Airflow."""

from __future__ import annotations

from typing import Any

from pbg_tasks import __version__


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, by Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "pbg-tasks",
        "name": "PBG",
        "description": "Nightly embeddings of large multi-relation graphs in PyTorch-BigGraph's formats.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": "PBG",
                "external-doc-url": "https://torchbiggraph.readthedocs.io/",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "PBG",
                "python-modules": [
                    "pbg_operators.task",
                    "pbg_operators.plan",
                    "pbg_operators.gate",
                    "pbg_operators.publish",
                    "pbg_operators.export",
                    "pbg_operators.train_job",
                    "pbg_operators.watch",
                    "pbg_operators.redo",
                    "pbg_operators.tune",
                ],
            }
        ],
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
