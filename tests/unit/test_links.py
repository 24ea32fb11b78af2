"""Links between pages lead somewhere, on GitHub and on the site."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from shadowprice.service.api.app import create_app
from shadowprice.service.problems import TITLES
from shadowprice.service.service import Service

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "design/*.md", "packages/*/*.md")
    for path in ROOT.glob(pattern)
    if not path.is_symlink()
)


def anchors(page: Path) -> set[str]:
    """Return the anchors that both GitHub and MkDocs give the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    result = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        github = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        site = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        if github == site:
            result.add(site)
    return result


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_reference_of_the_rest_api_has_every_route_and_code() -> None:
    page = (ROOT / "docs" / "rest-api.md").read_text(encoding="utf-8")
    routes = create_app(Service.__new__(Service)).openapi()["paths"]
    declared = {f"{method.upper()} {path}" for path in routes for method in routes[path]}
    assert set(re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", page, re.MULTILINE)) == declared
    assert not [code for code in TITLES if f"`{code}`" not in page]
