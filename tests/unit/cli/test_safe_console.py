"""What a console shows of names and messages that look like markup."""

from __future__ import annotations

import pytest

from shadowprice.cli.console import stdout


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]: Traceback",
        "[red]job[/red]",
        r"\[red]",
        r"\\[red] \[1]",
        "gpu-[0-3] [1] []",
        "[link=https://example.org]name[/link]",
        "[/] [@click=app.quit] [#ff0000]",
        "job:fire:1",
    ],
)
@pytest.mark.parametrize("markup", [True, False])
def test_brackets_of_others_stay(
    text: str, markup: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout().print(text, soft_wrap=True, markup=markup)
    assert capsys.readouterr().out == f"{text}\n"


def test_bold_is_the_markup_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    stdout().print("[bold]name[/bold] [boldly]", soft_wrap=True)
    assert capsys.readouterr().out == "name [boldly]\n"
