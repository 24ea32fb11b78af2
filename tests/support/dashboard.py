"""The dashboard in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.browsers import Visit
from tests.support.services import RunningService

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = [
    '<script>window.hacked = 1</script><img src="x" onerror="window.hacked = 2">',
    "quote \" and ' and ` and ${window.hacked = 3}",
    "override \u202egpj.exe",
    "__proto__",
    "long-" + "name-without-any-place-to-break" * 5,
    "%2e%2e #frag ?query=1",
]


def operator_token(live: RunningService) -> str:
    return live.service.token_file.read_text().strip()


def sign_in(visit: Visit, address: str, token: str, view: str = "") -> Page:
    """Open the page, sign in, and wait for the view."""
    page = visit.page
    page.goto(f"{address}/{view}")
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.locator("header.top").wait_for()
    page.locator("main .tiles, main table, main figure, main fieldset").first.wait_for()
    page.locator(".chip.live").wait_for()
    return page


def open_view(page: Page, view: str) -> None:
    page.evaluate("(hash) => { location.hash = hash }", view)
    page.wait_for_timeout(50)
    page.locator(
        "main .tiles, main table, main figure:not([hidden]), main fieldset"
    ).first.wait_for()
    page.wait_for_timeout(700)


VIEWS = [
    "#/",
    "#/server/g-0",
    "#/queue",
    "#/queue/all",
    "#/prices",
    "#/tenants",
    "#/statement/red",
    "#/quote",
    "#/submit",
    "#/compare/trains/others",
    "#/activity",
    "#/whatif",
    "#/job/trains",
    "#/job/fails",
    "#/job/too%20big",
]

"""Of a service that runs jobs; an observing one has another."""
