"""A docstring lists only parameters that exist; one whose name and type say enough is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shadowprice

ROOT = Path(shadowprice.__file__).parent
SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*)(?: : .*)?$", re.MULTILINE)


def listed(docstring: str) -> set[str] | None:
    """Return the parameters that a docstring lists, None if it lists none."""
    section = SECTION.search(docstring)
    if section is None:
        return None
    return {name.strip("* ") for names in NAMES.findall(section[1]) for name in names.split(", ")}


def taken(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the parameters that callers of a function give."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    names = [one.arg for one in every if one is not None]
    return {name for name in names if name not in {"self", "cls"} and not name.startswith("_")}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield public functions, and public methods of public classes."""
    for node in ast.iter_child_nodes(tree):
        name = getattr(node, "name", "")
        if isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from functions(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not name.startswith("_"):
            yield node


def differences(source: str) -> list[str]:
    """Return the listed parameters that a function doesn't take."""
    results = []
    for function in functions(ast.parse(source)):
        names = listed(ast.get_docstring(function) or "")
        unknown = (names or set()) - taken(function)
        if unknown:
            results.append(f"{function.lineno} {function.name}: {sorted(unknown)}")
    return results


def test_listed_parameters_exist() -> None:
    results = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in (ROOT, ROOT / "jobs", ROOT / "training")  # rglob follows no links
        for path in sorted(folder.rglob("*.py"))
        for line in differences(path.read_text("utf-8"))
    ]
    assert not results, "\n".join(results)


def test_a_removed_parameter_is_found() -> None:
    source = '''
def scaled(a, *b, c=0, **d):
    """Do.

    Parameters
    ----------
    a : int
        One.
    *b, {names}
        As in `other`.

    Returns
    -------
    int
        e : no parameter.
    """

def unlisted(a):
    """Do."""
'''
    assert not differences(source.format(names="c, **d"))
    assert not differences(source.format(names="c"))
    assert differences(source.format(names="c, **d, e")) == ["2 scaled: ['e']"]
