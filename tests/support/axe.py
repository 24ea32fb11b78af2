"""Faults of a page that axe-core finds; the library is in `tests/axe`.

WCAG 2.2 A and AA, and best practices. Tests that draw every page at the width of a desktop in light
and of a phone in dark check for these faults too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

AXE = Path(__file__).parent.parent / "axe" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def prepare(context: BrowserContext) -> None:
    """Load axe-core into pages first; no policy of a page prevents it."""
    context.add_init_script(path=AXE)


def objections(page: Page, where: str) -> list[str]:
    """Return axe-core's findings, a line an element."""
    result = page.evaluate(
        "(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", TAGS
    )
    assert len(result["passes"]) > 5, "axe-core looked at nothing"
    return [
        f"{where}: {violation['id']} ({violation['impact']}) {node['target']}: {node['html'][:200]}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]
