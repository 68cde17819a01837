"""The package's provider info for Airflow.

It follows Airflow's own schema, and names existing things.
"""

from __future__ import annotations

import importlib
import json
from importlib.resources import files

import jsonschema

from pbg_operators.provider_info import get_provider_info


def test_provider_info_follows_the_schema():
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_provider_info_names_existing_things():
    info = get_provider_info()
    modules = [name for kind in ("operators", "triggers") for entry in info[kind] for name in entry["python-modules"]]
    for name in modules:
        importlib.import_module(name)
    for link in info["extra-links"]:
        module, _, attribute = link.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)
