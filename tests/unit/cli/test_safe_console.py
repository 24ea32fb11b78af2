"""Output of a console for names and messages that look like markup."""

from __future__ import annotations

import pytest

from shadowprice.cli.console import make_table, progress_bar, stdout


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
        "[bold]name[/bold] [/bold] [boldly]",
    ],
)
@pytest.mark.parametrize("markup", [True, False])
def test_brackets_of_others_stay(
    text: str, markup: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout().print(text, soft_wrap=True, markup=markup)
    assert capsys.readouterr().out == f"{text}\n"


def test_tables_and_titles_show_markup_of_others_literally(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "[bold]a[/bold] [dim]b"
    table = make_table([text], [[text]], title=text)
    table.caption = text
    stdout().print(table)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [text] * 4


def test_bars_show_markup_of_others_literally(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with progress_bar("[bold]a[/bold]", quiet=False) as show:
        assert show is not None
        show(1, 2)
    assert "[bold]a[/bold]" in capsys.readouterr().err
