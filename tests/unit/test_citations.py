"""Files that the code cites exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = re.compile(r"\b(?:design|docs)/[\w./-]+?\.md\b")


@pytest.mark.parametrize("folder", ["src", "packages", "tests", "benchmarks", "tools"])
def test_pages_that_are_cited_exist(folder: str) -> None:
    files = [*(ROOT / folder).rglob("*.py")]
    cited = {(page, path) for path in files for page in PAGE.findall(path.read_text("utf-8"))}
    assert folder != "src" or cited
    assert not [(page, path.name) for page, path in cited if not (ROOT / page).exists()]
