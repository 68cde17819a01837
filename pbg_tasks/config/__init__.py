"""Configs: PBG's own (``ConfigSchema``), a graph's (``GraphSpec``), a run's (``RunSpec``)."""

from __future__ import annotations

from pbg_tasks.config.costs import Costs, Limits
from pbg_tasks.config.gates import DataGates, Gates
from pbg_tasks.config.graph import Columns, Evaluation, GraphSpec, Resources, Snapshots, Split, Training
from pbg_tasks.config.launch import KubernetesLaunch, Launch
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.prepare import SparkConnect, SparkKubernetes, SparkLaunch, SparkSubmit
from pbg_tasks.config.run import Previous, RunLayout, RunSpec, SnapshotFile
from pbg_tasks.config.schema import ConfigSchema, EntitySchema, ModelConfig, RelationSchema

__all__ = [
    "Columns",
    "ConfigSchema",
    "Costs",
    "DataGates",
    "EntitySchema",
    "Evaluation",
    "Gates",
    "GraphSpec",
    "KubernetesLaunch",
    "Launch",
    "Limits",
    "ModelConfig",
    "Previous",
    "RelationSchema",
    "Resources",
    "RunLayout",
    "RunSpec",
    "SnapshotFile",
    "Snapshots",
    "SparkConnect",
    "SparkKubernetes",
    "SparkLaunch",
    "SparkSubmit",
    "Split",
    "Training",
    "load_graph_spec",
]
