"""Pages of the site that are made from the code.

``mkdocs.yml`` names this file as a hook. It imports the package without torch and without Airflow.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mkdocs.structure.files import File
from typer.cli import get_docs_for_click

from pbg_tasks.cli import app
from pbg_tasks.config import GraphSpec, sinks, sources
from pbg_tasks.config.reference import attributes, default_of, documented_keys, kind, markdown_of, rest, within
from pbg_tasks.config.schema import (
    ENTITY_EXTENSIONS,
    EXTENSIONS,
    RELATION_EXTENSIONS,
    ConfigSchema,
    EntitySchema,
    RelationSchema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page
    from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
IN_DAGS = ("Operator", "Hook", "TaskGroup")
"""Ends of the names of classes that DAG files use."""
PBG = {"ConfigSchema": "A config", "EntitySchema": "An entity type", "RelationSchema": "A relation"}
"""Models of PBG's config, with the titles of their tables, which are a page of their own."""
EXPLAINED = {
    "init_path": "checkpoints.md",
    "checksums": "pbg-config.md#checksums",
    "bucket_order": "pbg-config.md#partitions-in-memory",
    "partition_buffer": "pbg-config.md#partitions-in-memory",
    "self_negatives": "pbg-config.md#negatives-that-pbg-does-not-have",
    "negatives_by_degree": "pbg-config.md#negatives-that-pbg-does-not-have",
    "gradient": "engines.md#sampled-gradients",
    "precision": "gpu.md#precision",
    "num_gpus": "gpu.md",
    "num_machines": "distributed.md#keys",
    "num_partition_servers": "distributed.md#how-partitions-travel",
    "partitions_ahead": "distributed.md#partitions-that-move-behind-the-training",
    "rank_tls": "distributed.md#encryption",
    "all_negs": "pbg-config.md#all-entities-as-negatives",
    "num_partitions": "graph-spec.md#model",
}
"""Pages that have more about a key of PBG's config."""
KEYS = re.compile(r"(?<!\[)`pbg keys(?: [\w.]+)?`")
"""A command that prints what the site has a page of."""
LEAVING = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")
"""A link whose target may be outside the docs: its text and its target."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages made from models, commands and the change log."""
    for path, text in (
        ("reference/graph-spec-keys.md", spec_keys()),
        ("reference/pbg-config-keys.md", pbg_keys()),
        ("reference/command-line.md", command_line()),
        ("reference/operators.md", operators()),
        ("reference/python.md", python()),
        *notebooks(),
        ("changes.md", (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")),
    ):
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Name a file of the repository, where a page links to one.

    Where a page names the command that prints keys, the site has a link to them.
    """
    place = ROOT / "docs" / page.file.src_uri

    def plain(found: re.Match[str]) -> str:
        target = (place.parent / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return found[0]
        return f"{found[1]} (`{target.relative_to(ROOT)}` in the repository)"

    up = "../" * page.file.src_uri.count("/")
    linked_keys = KEYS.sub(rf"[\g<0>]({up}reference/graph-spec-keys.md)", markdown)
    return LEAVING.sub(plain, linked_keys)


def notebooks() -> Iterator[tuple[str, str]]:
    """Yield the notebooks as pages, each with the place of its file."""
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        parts = [f"*`{path.relative_to(ROOT)}` in the repository*"]
        for cell in json.loads(path.read_text())["cells"]:
            text = "".join(cell["source"])
            parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        parts[:2] = reversed(parts[:2])  # a page begins with its title
        yield f"notebooks/{path.stem}.md", "\n\n".join(parts).replace("](../../docs/", "](../")


def command_line() -> str:
    """Return the reference of all commands, from their help texts."""
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name="pbg", title="The command line")


def operators() -> str:
    """Return the reference of the classes for DAGs, from their docstrings.

    The sources are read and not imported: that would take Airflow.
    """
    text = (
        "# Operators\n\nThe classes of `pbg_operators` for DAGs of your own, made from their docstrings. "
        "[A DAG of your own](../airflow.md#a-dag-of-your-own) has an example; most teams need `PbgTaskGroup` only. "
        "An operator also takes the arguments of the class after its name.\n"
    )
    parts = [text]
    for path in sorted((ROOT / "operators" / "pbg_operators").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(IN_DAGS):
                bases = ", ".join(ast.unparse(base) for base in node.bases)
                module = f"pbg_operators.{path.stem}"
                parts.append(f"\n## {node.name}\n\n`{module}.{node.name}({bases})`\n\n{documented(node)}")
    return "".join(parts)


def python() -> str:
    """Return the reference of ``pbg_tasks``, from its docstrings."""
    names = "`pbg_tasks.train` and `pbg_tasks.Model`"
    parts = [f"# Python\n\nMade from the docstrings of {names}. [From Python](../python.md) has examples.\n"]
    for module in ("training", "model"):
        for node in ast.parse((ROOT / "pbg_tasks" / "api" / f"{module}.py").read_text()).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name not in ("train", "Model"):
                continue
            parts.append(f"\n## {node.name}\n\n{documented(node)}")
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
            parts.extend(f"\n### Model.{each.name}\n\n{documented(each)}" for each in methods)
    return "".join(parts)


def documented(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return a docstring as Markdown, with a table of arguments."""
    text, _, sections = inspect.cleandoc(ast.get_docstring(node) or "").partition("\nArgs:\n")
    arguments = re.split(r"\n\n(?=[A-Z]\w+:\n)", sections)[0]
    table = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in attributes(f"{arguments}\n").items())
    prose = "\n\n".join(markdown_of(part) for part in text.split("\n\n"))
    return f"{prose}\n\n| argument | meaning |\n|---|---|\n{table}" if table else f"{prose}\n"


def spec_keys() -> str:
    """Return a table for each section of a graph spec.

    Options of sinks and tables have theirs at the end.
    """
    schema = GraphSpec.model_json_schema()
    options = [sinks.SinkOptions, *sinks.OPTIONS.values(), *sources.OPTIONS.values()]
    sections = [("The spec", schema), *sorted(schema["$defs"].items())]
    sections += [(model.__name__, model.model_json_schema()) for model in options]
    models = {model.__name__: model for root in (GraphSpec, *options) for model in within(root)}
    parts = [
        "# Keys of a graph spec\n\n",
        "Made from the models that read a spec; `pbg schema` prints the JSON Schema. ",
        "[The graph spec](../graph-spec.md) begins with an example.\n\n",
    ]
    for name, section in sections:
        if section.get("properties") and name not in (*PBG, "ModelConfig"):
            parts.append(f"## {name}\n\n{rest(section)}\n\n| key | type | default | meaning |\n|---|---|---|---|\n")
            parts.extend(rows(section, models[section["title"]], schema["$defs"]))
            parts.append("\n")
    return "".join(parts)


def pbg_keys() -> str:
    """Return tables of a PBG config, an entity type and a relation."""
    schema = ConfigSchema.model_json_schema()
    parts = [
        "# Keys of PBG's config\n\n",
        "Made from the models that read a config. What is not PBG's is in italics, and is left out of `config.json` ",
        "at its default, so that PBG reads it. [PBG's config](../pbg-config.md) explains more.\n\n",
    ]
    extensions = {*EXTENSIONS, *ENTITY_EXTENSIONS, *RELATION_EXTENSIONS}
    for model in (ConfigSchema, EntitySchema, RelationSchema):
        section = schema if model is ConfigSchema else schema["$defs"][model.__name__]
        parts.append(f"## {PBG[model.__name__]}\n\n| key | type | default | meaning |\n|---|---|---|---|\n")
        for row in rows(section, model, schema["$defs"]):
            key = row.split("`")[1]
            more = f" [More](../{EXPLAINED[key]}). |\n" if key in EXPLAINED else " |\n"
            parts.append(row.replace(f"`{key}`", f"*`{key}`*", key in extensions).removesuffix(" |\n") + more)
        parts.append("\n")
    return "".join(parts)


def rows(section: dict[str, Any], model: type[BaseModel], sections: dict[str, Any]) -> Iterator[str]:
    """Yield a line of the table for each key."""
    meanings = documented_keys(model)
    for key, found in section["properties"].items():
        default = default_of(key, section, model)
        default = default if default == "required" else f"`{default}`"
        below_it = sections.get(found.get("$ref", "").rpartition("/")[2], {})
        meaning = meanings.get(key) or rest(below_it).partition(".")[0]
        yield f"| `{key}` | {kind(found, linked)} | {default} | {meaning} |\n"


def linked(name: str) -> str:
    """Return a link to the table of a section."""
    if name in (*PBG, "ModelConfig"):
        return f"[{PBG.get(name, 'config')}](pbg-config-keys.md#{PBG.get(name, 'a-config').lower().replace(' ', '-')})"
    return "any" if name == "JsonValue" else f"[{name}](#{name.lower()})"
