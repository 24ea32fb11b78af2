"""Pages in a real browser, with their errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


class Visit:
    """A page with its errors and requests."""

    def __init__(
        self, browser: Browser, width: int = 1400, scheme: Any = "light", zone: str | None = None
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id=zone
        )
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path, fragment: str = "", *, whole: bool = True) -> Page:
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready]", timeout=30_000)
        if whole:  # charts far below the window are drawn when they come near it, or for print
            self.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        return self.page

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def numbers_of(behind: Locator) -> list[list[str]]:
    """Open the table of a chart and return the cells of its visible rows."""
    if behind.get_attribute("open") is None:
        behind.locator("summary").click()
    behind.locator("tbody tr").first.wait_for()
    return [line.split("\t") for line in behind.locator("tbody tr").all_inner_texts()]


OVERFLOWING = """() => {
  const wide = document.documentElement.clientWidth, found = [];
  const { scrollWidth } = document.documentElement;
  if (scrollWidth > wide) found.push(`page: ${scrollWidth}`);
  for (const card of document.querySelectorAll("figure, .tile, .table, dl")) {
    const edge = card.getBoundingClientRect().right + 1;
    for (const inside of card.querySelectorAll("*")) {
      if (inside.closest(".scroll, .tip") || !inside.getClientRects().length) continue;
      if (inside.getBoundingClientRect().right > edge) found.push(inside.outerHTML.slice(0, 120));
    }
  }
  return found.slice(0, 5);
}"""

NAMELESS = """() => [
  ...document.querySelectorAll("button, input, select, summary, a, .canvas"),
].filter((one) => {
  const label = one.getAttribute("aria-label") ?? one.textContent ?? "";
  return !label.trim() && !(one.id && document.querySelector(`label[for="${one.id}"]`));
}).map((one) => one.outerHTML.slice(0, 120))"""

BLANK = """() => [...document.querySelectorAll(".canvas canvas")].filter((canvas) => {
  const copy = Object.assign(document.createElement("canvas"), {width: 200, height: 100});
  const context = copy.getContext("2d", {willReadFrequently: true});
  context.drawImage(canvas, 0, 0, 200, 100);
  const {data} = context.getImageData(0, 0, 200, 100);
  return !data.some((value) => value !== 0);
}).length"""
