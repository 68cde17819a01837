"""Start of a preparation's tasks on Spark, by Airflow.

It is never part of a run, because it changes no result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.pods import Label, ObjectName, check_metadata, check_pinned
from pbg_tasks.config.schema import PositiveInt

PREPARATION = ("validate", "partition", "bucket", "prepare")
"""Tasks that may run on Spark; the last one with ``airflow.few_tasks`` only."""
_SECRET = re.compile(
    r"(secret|password|token)[^.]*$|(secret|private|encryption|api)[._-]?key$|account\.key(\.|$)", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"(secret|password|token|account\.key)[\w.\-]*=", re.IGNORECASE)
"""Options of a Java machine or a URL that hold a secret."""
_REFERENCE = re.compile(r"\.secretKeyRef\.|\.secrets\.|_(file|path)$", re.IGNORECASE)
"""Settings that name a Secret of Kubernetes or a file, and hold no secret themselves."""
_OPEN = ("hadoopConf", "envVars")
"""Mappings of a SparkApplication that hold values in plain text."""
_OURS = ("type", "mode", "image", "mainApplicationFile", "arguments", "restartPolicy", "sparkConf")


def _checked_conf(conf: dict[str, str | bool | int | float]) -> dict[str, str | bool | int | float]:
    for key, value in conf.items():
        _check_open(f"conf: {key}", key, value, "write it into spark-defaults.conf, or name a Secret of the cluster")
    return conf


def _check_open(what: str, name: str, value: object, advice: str) -> None:
    """Refuse a setting that holds a secret.

    Raises:
        ValueError: its name or value is that of a secret.
    """
    if (_SECRET.search(name) and not _REFERENCE.search(name)) or _SECRET_VALUE.search(str(value)):
        raise ValueError(f"{what} would be kept with the DAG and shown by Airflow; {advice}")


Conf = Annotated[
    dict[Annotated[str, Field(pattern=r"^spark\.[\w.\-/]+$")], str | bool | int | float], AfterValidator(_checked_conf)
]


class _WithConf(Frozen):
    conf: Conf = Field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of Spark as it reads them."""
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in self.conf.items()}


class SparkSubmit(_WithConf):
    """Application of ``spark-submit`` on the worker, by Airflow's SparkSubmitOperator.

    Attributes:
        connection: Airflow connection of type ``spark``, whose host is the master; without the default one, YARN.
        deploy_mode: ``client``: the driver is a process of the worker; ``cluster``: of YARN or Kubernetes.
        conf: settings of Spark, none of them secret.
        properties_file: on the worker, in place of ``spark-defaults.conf``.
        application: file that the driver runs, where it runs; null: this package's on the worker.
    """

    connection: Annotated[str, Field(min_length=1)] = "spark_default"
    deploy_mode: Literal["client", "cluster"] = "client"
    properties_file: Annotated[str, Field(min_length=1)] | None = None
    application: Annotated[str, Field(min_length=1)] | None = None


class SparkKubernetes(_WithConf):
    """SparkApplication of Kubeflow's Spark operator, by Airflow's SparkKubernetesOperator.

    Attributes:
        connection: Airflow connection of the cluster; without the default one, the cluster that Airflow runs in, or
            kubectl's.
        namespace: of the SparkApplication.
        image: of driver and executors, such as ``docker/``'s image ``spark``, by digest (``name@sha256:...``).
        allow_tag: accept an image that is named by a tag.
        application: file in the image that the driver runs.
        conf: settings of Spark, none of them secret.
        secret: a Secret whose keys become variables of driver and executors, such as ``AWS_ACCESS_KEY_ID``.
        startup_seconds: how long the driver may take to start.
        template: ``metadata`` and ``spec`` of a SparkApplication in Kubernetes' form, such as ``driver`` and
            ``executor`` with their sizes, under that of the launcher.
    """

    connection: Annotated[str, Field(min_length=1)] = "kubernetes_default"
    namespace: Label = "default"
    image: str = Field(min_length=1)
    allow_tag: bool = False
    application: Annotated[str, Field(min_length=1)] = (
        "local:///opt/pbg/lib/python3.11/site-packages/pbg_tasks/__main__.py"
    )
    secret: ObjectName | None = None
    startup_seconds: PositiveInt = 900
    template: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_pinned(self.image, allow_tag=self.allow_tag)
        if unknown := [key for key in self.template if key not in {"metadata", "spec"}]:
            raise ValueError(f"template: unknown key {unknown[0]!r}; it has metadata and spec")
        spec, metadata = (_mapping(self.template, name, "template") for name in ("spec", "metadata"))
        if taken := [key for key in _OURS if key in spec]:
            raise ValueError(f"template: spec.{taken[0]} is the launcher's; remove it")
        if unknown := [key for key in metadata if key not in {"labels", "annotations"}]:
            raise ValueError(f"template: metadata.{unknown[0]} is the launcher's; remove it")
        for key in metadata:
            check_metadata(metadata[key], f"template: metadata.{key}")
        for part in ("driver", "executor"):
            for name in ("env", "envFrom"):
                if not isinstance(_mapping(spec, part, "template: spec").get(name, []), list):
                    raise ValueError(f"template: spec.{part}.{name} must be a list")  # noqa: TRY004 - for pydantic
        for where, name, value in _open_settings(spec, "spec"):
            _check_open(f"template: {where}: {name}", name, value, "name a Secret: with `secret`, or valueFrom in env")
        return self


class SparkConnect(Frozen):
    """Session of a Spark Connect server, opened by commands on the worker.

    Attributes:
        remote: URL of the server, ``sc://HOST:PORT/;use_ssl=true``; null takes it from the connection.
        connection: Airflow connection of type ``spark_connect``: its password is the token, which no URL may hold; null
            takes none.
    """

    remote: Annotated[str, Field(pattern=r"^sc://[^\s/;]+(/.*)?$")] | None = None
    connection: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.remote is None and self.connection is None:
            raise ValueError("spark_connect takes remote, such as sc://HOST:15002, or connection")
        return self


SparkLaunch = SparkSubmit | SparkKubernetes | SparkConnect


def _open_settings(part: object, where: str) -> Iterator[tuple[str, str, object]]:
    """Yield the settings and variables that stand in a template.

    Returns:
        Place, name and value of each.
    """
    if isinstance(part, list):
        for each in part:
            yield from _open_settings(each, where)
    if not isinstance(part, Mapping):
        return
    for key, value in part.items():
        at = f"{where}.{key}"
        if key in _OPEN and isinstance(value, Mapping):
            yield from ((at, str(name), each) for name, each in value.items())
        elif key == "env" and isinstance(value, list):
            pairs = (each for each in value if isinstance(each, Mapping) and each.get("value"))
            yield from ((at, str(each.get("name")), each["value"]) for each in pairs)
        elif key == "javaOptions":
            yield where, key, value
        elif key in {"args", "command"} and isinstance(value, list):
            yield from ((where, key, each) for each in value)
        else:
            yield from _open_settings(value, at)


def _mapping(parent: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = parent.get(name, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{where}: {name} must be a mapping, as Kubernetes writes it")  # noqa: TRY004 - for pydantic
    return found
