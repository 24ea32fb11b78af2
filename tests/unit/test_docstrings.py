"""A docstring that lists parameters lists all of them; some may be "As in" another one."""

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
    """Return what parameter lists leave out, and what they name that is not there."""
    found = []
    for function in functions(ast.parse(source)):
        names = listed(ast.get_docstring(function) or "")
        if names is not None and names != taken(function):
            missing, strange = taken(function) - names, names - taken(function)
            found.append(f"{function.lineno} {function.name}: {sorted(missing)} {sorted(strange)}")
    return found


def test_parameters_are_listed_all_or_not_at_all() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        for line in differences(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_what_is_left_out_or_long_gone_is_found() -> None:
    source = '''
def told(a, *b, c=0, **d):
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

def untold(a):
    """Do."""
'''
    assert not differences(source.format(names="c, **d"))
    assert differences(source.format(names="c")) == ["2 told: ['d'] []"]
    assert differences(source.format(names="c, **d, e")) == ["2 told: [] ['e']"]
