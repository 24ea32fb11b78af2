"""Registry of the sections of a run's page.

A section is a function of a `RunData` that returns HTML, or None to be omitted. To add a section,
add a decorated function to a ``section_*.py`` module in this package.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from shadowprice.results.report.inline_assets import text
from shadowprice.results.run_directory import RunData

Render = Callable[[RunData], str | None]


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page."""

    title: str
    order: int  # sort key; ties are sorted by title
    render: Render  # returns HTML, or None without content

    @property
    def anchor(self) -> str:
        """Anchor that links use."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


_sections: dict[str, Section] = {}


def section(title: str, order: int) -> Callable[[Render], Render]:
    """Register a function as a section; parameters as in `Section`."""

    def register(render: Render) -> Render:
        if title in _sections and _sections[title].render is not render:
            raise ValueError(f"two sections are called {title!r}")
        _sections[title] = Section(title, order, render)
        return render

    return register


def sections() -> list[Section]:
    """Return all sections in their order."""
    _load()
    return sorted(_sections.values(), key=lambda item: (item.order, item.title))


@cache
def _load() -> None:
    package = importlib.import_module("shadowprice.results.report")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("section_"):
            importlib.import_module(f"{package.__name__}.{module.name}")


def figure(title: str, body: str, remark: str = "") -> str:
    """Return a chart with its title and a caption."""
    caption = f"<figcaption>{text(remark)}</figcaption>" if remark else ""
    return f"<figure><h3>{text(title)}</h3>{body}{caption}</figure>"
