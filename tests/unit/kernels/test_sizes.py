"""Kernels stay small enough to read: shared parameters are in records."""

from __future__ import annotations

import ast
from pathlib import Path

import shadowprice.kernels

MOST_ARGUMENTS = 15
MOST_LINES = 190


def test_kernels_have_few_arguments_and_lines() -> None:
    large = []
    for path in Path(shadowprice.kernels.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                has_docstring = ast.get_docstring(node) is not None
                body = node.body[1:] if has_docstring and len(node.body) > 1 else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                arguments = len(node.args.args) + len(node.args.kwonlyargs)
                if lines > MOST_LINES or arguments > MOST_ARGUMENTS:
                    large.append(f"{path.name}:{node.lineno} {node.name}: {lines}, {arguments}")
    assert not large
