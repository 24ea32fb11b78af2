"""axe-core finds violations, and checks every view of the dashboard.

That it finds nothing is asserted where every page is drawn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from shadowprice.service.dashboard import files
from tests.support import axe
from tests.support.browsers import CHROMIUM, Visit, browser
from tests.support.dashboard import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the pages are not looked at"),
]


def test_axe_finds_violations(browser: Browser) -> None:
    with Visit(browser) as visit:
        axe.prepare(visit.context)
        visit.page.goto("about:blank")
        visit.page.set_content(
            "<html lang=en><title>x</title><main><h1>x</h1><p>text</p><a href=#a>text</a>"
            "<input><img src='data:,'><button></button></main>"
        )
        rules = {line.split()[1] for line in axe.objections(visit.page, "page")}
    assert {"label", "image-alt", "button-name"} <= rules


def test_every_view_is_checked() -> None:
    script = files()["assets/app.mjs"].body.decode()
    [table] = re.findall(r"const VIEWS = \{(.*?)\};", script, re.DOTALL)
    known = {name.strip().strip('"') for name in re.findall(r'("[^"]*"|\w+)\s*:', table)}
    assert known == {view.split("/")[1] for view in [*VIEWS, "#/observed"]}
