"""Every policy has a page, which the index and the navigation name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowprice.policies.registry import builtin_policies

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", builtin_policies())
def test_every_policy_has_a_page_that_is_found(name: str) -> None:
    page, index = f"{name}.md", ROOT / "docs" / "policies" / "index.md"
    assert (index.parent / page).is_file()
    assert f"| [`{name}`]({page}) |" in index.read_text(encoding="utf-8")
    assert f"policies/{page}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
