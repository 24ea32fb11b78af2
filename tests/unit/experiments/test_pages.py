"""Every experiment has a page, and every page begins with a summary of its results.

The summary is a table: for each figure the paper's result, the measured result, whether it was
reproduced, and the reason. The page also shows the command, quick and full.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from shadowprice.experiments.framework import experiments

FOLDER: Final = Path(__file__).parents[3] / "docs" / "experiments"
PAGES: Final = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")

VERDICTS: Final = {"reproduced", "reached", "mostly", "order only", "not", "better"}
"""Verdicts of a figure, which the index explains."""

HEADS: Final = ({"the paper", "the thesis", "goal"}, {"measured"}, {"reproduced?"})


def page_of(name: str) -> str:
    """Return the page of an experiment: its own, or that of the paper."""
    return name if name in PAGES else name.partition("-")[0]


def experiments_of(page: str) -> set[str]:
    return {name for name in experiments() if page_of(name) == page}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def status(page: str) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table that a page begins with."""
    lines = (FOLDER / f"{page}.md").read_text(encoding="utf-8").splitlines()
    begun = [line for line in lines[1:] if line.strip()]
    table = []
    for line in begun:
        if not line.startswith("|"):
            break
        table.append(line)
    assert lines[0].startswith("# ")
    assert len(table) > 2, f"{page}: nothing stands before the table"
    return cells(table[0]), [cells(line) for line in table[2:]]


def commands(page: str) -> list[str]:
    """Return the commands between fences, without their comments."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.partition("#")[0].strip() for fence in fences for line in fence.splitlines()]
    return [line for line in lines if line.startswith("shadowprice experiment ")]


def test_every_experiment_has_a_page_and_every_page_experiments() -> None:
    assert {page_of(name) for name in experiments()} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_a_summary_of_results(page: str) -> None:
    head, rows = status(page)
    assert len(head) == 5
    assert all(title in known for title, known in zip(head[1:], HEADS, strict=False))
    assert head[4] == "reason"
    named = []
    for row in rows:
        assert len(row) == 5, row
        assert all(row), f"an empty cell: {row}"
        named += re.findall(r"`([\w.-]+)`", row[0])
        assert row[3].replace("*", "") in VERDICTS, row[3]
    # Every experiment has an entry, and every entry is an experiment.
    assert set(named) == experiments_of(page)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_its_command_quick_and_full(page: str) -> None:
    shown = commands(page)
    mine = [words[2:] for line in shown if (words := line.split())[2] in experiments_of(page)]
    assert [words for words in mine if "--quick" in words]
    assert [words for words in mine if "--quick" not in words and "[--quick]" not in words]
    known = experiments()
    assert not [line for line in shown if line.split()[2] not in {*known, "list", "all"}]


def test_the_index_names_every_page_and_explains_every_verdict() -> None:
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert not [page for page in PAGES if f"({page}.md)" not in text]
    assert not [word for word in VERDICTS if f"**{word}**" not in text]
