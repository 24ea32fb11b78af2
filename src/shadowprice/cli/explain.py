"""``shadowprice explain``: one job's story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli.console import Output, print_json, stdout
from shadowprice.cli.options import OutputOption

if TYPE_CHECKING:
    from rich.table import Table

    from shadowprice.results.story import Story

MOST_STAYS = 12
"""Placements shown of a plan or a run."""


def explain(
    run: Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")],
    job: Annotated[str, typer.Argument(help="Name of the job.", metavar="JOB")],
    full: Annotated[
        bool, typer.Option("--full", help="Show every placement of a long plan.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell a job's story: what it asked, what was decided and why, where and when it ran.

    [bold]Example[/bold]

    shadowprice explain run resnet50-a
    """
    from shadowprice.results.story import read_story

    story = read_story(run, job)
    if output is Output.JSON:
        print_json(story.record())
    else:
        _print(story, None if full else MOST_STAYS)


def _print(story: Story, most: int | None) -> None:
    from rich.panel import Panel
    from rich.text import Text

    from shadowprice.results.telling import story_lines

    console = stdout()
    colour, verdict = _verdict(story.job)
    title = Text.assemble((story.job["job"], "bold"), "  ", (verdict, f"bold {colour}"))
    group = _facts(story_lines(story, most))
    subtitle = f"under {story.info['policy']}"
    if story.info["partial"]:
        subtitle += ", in a run interrupted in slot " + str(story.info["interrupted_in_slot"])
    console.print(
        Panel(
            group,
            title=title,
            subtitle=Text(subtitle, "dim"),
            title_align="left",
            subtitle_align="right",
            border_style=colour,
            padding=(1, 2),
        )
    )


def _facts(rows: Iterator[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, Text(text))
    return table


def _verdict(job: dict[str, Any]) -> tuple[str, str]:
    outcome = job["outcome"]
    if outcome == "finished":
        late = job["late"]
        if late is None:
            return "green", "finished"
        return ("green", "finished in time") if late <= 0 else ("yellow", "finished late")
    colour = "red" if outcome in {"refused", "dropped"} else "yellow"
    words = {"running": "still running", "waiting": "still waiting"}
    return colour, words.get(outcome, outcome)
