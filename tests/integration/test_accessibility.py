"""Every view of the dashboard and every page of a report, as axe-core sees it: none has a fault.

WCAG 2.2 A and AA, and best practices, at the width of a desktop in light and of a phone in dark.
The library is in `tests/axe`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shadowprice.service.dashboard import files
from tests.integration.test_dashboard import CHROMIUM, VIEWS, enter, go, live, operator
from tests.integration.test_dashboard_observed import watched
from tests.integration.test_pages_in_browser import Visit, browser, pages
from tests.support.services import RunningService

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "live", "pages", "watched"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the pages are not looked at"),
]

AXE = Path(__file__).parent.parent / "axe" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

SIZES = [(1400, "light"), (390, "dark")]


@contextmanager
def visiting(browser: Browser, width: int = 1400, scheme: Any = "light") -> Iterator[Visit]:
    """A page that axe-core is in before anything else; no policy of a page stops it there."""
    with Visit(browser, width, scheme) as visit:
        visit.context.add_init_script(path=AXE)
        yield visit


def objections(page: Page, where: str) -> list[str]:
    """Return what axe-core objects to, a line an element."""
    found = page.evaluate(
        "(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", TAGS
    )
    assert len(found["passes"]) > 5, "axe-core looked at nothing"
    return [
        f"{where}: {one['id']} ({one['impact']}) {node['target']}: {node['html'][:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def told(lines: list[str]) -> str:
    return "\n".join(lines)


def test_axe_objects_to_what_is_wrong(browser: Browser) -> None:
    with visiting(browser) as visit:
        visit.page.goto("about:blank")
        visit.page.set_content(
            "<html lang=en><title>x</title><main><h1>x</h1><p>text</p><a href=#a>text</a>"
            "<input><img src='data:,'><button></button></main>"
        )
        rules = {line.split()[1] for line in objections(visit.page, "page")}
    assert {"label", "image-alt", "button-name"} <= rules


def test_no_view_is_left_out() -> None:
    script = files()["assets/app.mjs"].body.decode()
    [table] = re.findall(r"const VIEWS = \{(.*?)\};", script, re.DOTALL)
    known = {name.strip().strip('"') for name in re.findall(r'("[^"]*"|\w+)\s*:', table)}
    assert known == {view.split("/")[1] for view in [*VIEWS, "#/observed"]}


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_view_of_the_dashboard(
    browser: Browser, live: RunningService, width: int, scheme: str
) -> None:
    found: list[str] = []
    with visiting(browser, width, scheme) as visit:
        visit.page.goto(live.address)
        visit.page.get_by_label("Token").wait_for()
        found += objections(visit.page, "sign in")
        page = enter(visit, live.address, operator(live))
        for view in VIEWS:
            go(page, view)
            found += objections(page, view)
        found += _dialogs(page)
    assert not found, told(found)


def _dialogs(page: Page) -> list[str]:
    """Look at every kind of dialog: one that warns, one with fields, one with a fault in it."""
    go(page, "#/")
    page.get_by_role("button", name="Drain g-0").click()
    page.locator("dialog[open]").wait_for()
    found = objections(page, "drain")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add servers").click()
    page.get_by_label("Name", exact=True).fill("g-0")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator("dialog .note.bad").wait_for()
    found += objections(page, "add servers")
    page.keyboard.press("Escape")
    return found


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_what_is_observed_and_what_would_be(
    browser: Browser, watched: RunningService, width: int, scheme: str
) -> None:
    asked = watched.client.post("/v1/whatif", json={"days": 1, "servers": {"g": 1}})
    run = asked.json()["id"]
    found: list[str] = []
    with visiting(browser, width, scheme) as visit:
        page = enter(visit, watched.address, operator(watched), "#/observed")
        page.get_by_role("heading", name="What really ran where").wait_for()
        found += objections(page, "observed")
        page.evaluate("(hash) => { location.hash = hash }", f"#/whatif/{run}")
        page.get_by_role("heading", name=f"What if {run}").wait_for()
        found += objections(page, "what-if, running")
        page.get_by_text("Gain", exact=True).wait_for(timeout=120_000)
        found += objections(page, "what-if")
    assert not found, told(found)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_page_of_a_report(
    browser: Browser, pages: dict[str, Path], width: int, scheme: Any
) -> None:
    found: list[str] = []
    for name, path in pages.items():
        with visiting(browser, width, scheme) as visit:
            page = visit.open(path)
            found += objections(page, name)
            job = page.locator("table a, table button").first
            if job.count():
                job.click()
                if page.locator("dialog[open]").count():
                    found += objections(page, f"{name}, a story")
    assert not found, told(found)
