"""No test waits without a limit: one that does would hang a run without a location."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]

ENDLESS = {"wait", "communicate", "join", "result", "get"}
"""Methods of processes, threads, futures, events and queues that wait for ever without arguments.
"""


def waits(tree: ast.AST, limited: bool = False) -> Iterator[int]:
    """Yield the lines that wait without a limit."""
    for node in ast.iter_child_nodes(tree):
        under = limited
        if isinstance(node, ast.AsyncWith):
            under |= any("asyncio.timeout(" in ast.unparse(item) for item in node.items)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            under = False  # callers and times of calls are unknown
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not under:
            fields = {keyword.arg for keyword in node.keywords}  # of **more, None
            method, silent = node.func.attr, not node.args and not fields
            if (silent and method in ENDLESS) or (
                method in {"run", "call", "check_call", "check_output"}
                and ast.unparse(node.func).startswith("subprocess.")
                and not fields & {"timeout", None}
            ):
                yield node.lineno
        yield from waits(node, under)


def test_endless_waits_are_found() -> None:
    script = (
        "process.wait()\nprocess.wait(3)\nprocess.communicate(timeout=3)\nthread.join()\n"
        "subprocess.run(['a'])\nsubprocess.run(['a'], timeout=3)\n', '.join(w)\nf.get('a')\n"
        "async def one():\n async with asyncio.timeout(3):\n  await one.wait()\n await one.wait()"
    )
    assert list(waits(ast.parse(script))) == [1, 4, 5, 12]


def test_no_test_waits_without_a_limit() -> None:
    results = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in waits(ast.parse(path.read_text()))
    ]
    assert results == []
