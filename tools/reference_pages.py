"""MkDocs hook that generates the site's reference pages from the code.

The pages only exist on the site, because a file in the repository would change with every option.
On GitHub, ``docs/reference.md`` names the commands that print the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from shadowprice.cli.main import app
from shadowprice.service.api.app import create_app
from shadowprice.service.metrics import Metrics
from shadowprice.service.service import Service


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages to the files of the folder ``docs``."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def pages() -> dict[str, str]:
    """Return the text of every generated page by its name."""
    return {
        "cli": "\n".join(_cli()),
        "rest": "\n".join(_rest()),
        "metrics": "\n".join(_metrics()),
        "parameters": "\n".join(_parameters()),
    }


def _cell(text: object) -> str:
    """Return a text as a table cell: one line, without Rich's markup."""
    plain = re.sub(r"\[/?(?:bold|dim|italic)\]", "", str(text or ""))
    parts = re.sub(r"\s+", " ", plain).strip().replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]  # outside of code
    return "`".join(parts)


def _table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> Iterator[str]:
    body = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    if body:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from body
        yield ""


def _cli() -> Iterator[str]:
    yield "# Command line\n"
    yield "This reference lists every command with its options, generated from the code.\n"
    yield "Every command takes `--help`; `--debug` shows the traceback of an error.\n"
    root = typer.main.get_command(app)
    yield from _commands(root, root.make_context("shadowprice", [], resilient_parsing=True), 2)


def _commands(group: Any, context: Any, level: int) -> Iterator[str]:
    # Untyped, because Typer has its own copy of Click, whose classes have no public name.
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield f"{'#' * level} {inner.command_path}\n"
        summary = re.split(r"\n\s*\n", (command.help or "").strip())[0]
        yield f"{_cell(summary)}\n"
        if hasattr(command, "list_commands"):
            yield from _commands(command, inner, level + 1)
            continue
        yield f"```\n{inner.command_path} {' '.join(command.collect_usage_pieces(inner))}\n```\n"
        yield from _table(("option", "meaning"), _options(command, inner))


def _options(command: Any, context: Any) -> Iterator[tuple[object, ...]]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            names, meaning = parameter.get_help_record(context)
            yield f"`{names}`", meaning


def _rest() -> Iterator[str]:
    # The document only needs the routes, so the service is not initialised.
    document = create_app(Service.__new__(Service)).openapi()
    yield "# Routes\n"
    yield "This reference lists every route of the REST API, generated from its OpenAPI document.\n"
    yield "[REST API](../rest-api.md) has its conventions, states, events and errors.\n"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"## {method.upper()} {path}\n"
            yield f"{_cell(operation.get('description') or operation['summary'])}\n"
            yield from _table(("parameter", "in", "type", "meaning"), _arguments(operation))


def _arguments(operation: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for parameter in operation.get("parameters", ()):
        schema = parameter.get("schema", {})
        kinds = [part.get("type") for part in (schema, *schema.get("anyOf", ()))]
        kind = " or ".join(kind for kind in kinds if kind and kind != "null")
        yield f"`{parameter['name']}`", parameter["in"], kind, parameter.get("description")


def _metrics() -> Iterator[str]:
    yield "# Metrics\n"
    yield "This reference lists the metrics that the service exports for Prometheus, generated.\n"
    metrics = [value for value in vars(Metrics()).values() if hasattr(value, "_labelnames")]
    rows = ((m.describe()[0].name, m._type, m._labelnames, m._documentation) for m in metrics)
    yield from _table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{name}{'_total' if kind == 'counter' else ''}`", kind, ", ".join(labels), meaning)
            for name, kind, labels, meaning in rows
        ),
    )


def _parameters() -> Iterator[str]:
    yield "# Parameters of policies\n"
    yield "This reference lists the parameters of every policy, generated from the code.\n"
    yield "Set them with `--set key=value` or in a TOML file with `--params`.\n"
    command = [sys.executable, "-m", "shadowprice", "policies", "-o", "json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for policy in json.loads(output):
        yield f"## {policy['name']}\n"
        yield f"{_cell(policy['summary'])}\n"
        yield from _table(
            ("parameter", "type", "default", "meaning"),
            (
                (f"`{row['name']}`", row["type"], row["default"], row["description"])
                for row in policy["parameters"]
            ),
        )
