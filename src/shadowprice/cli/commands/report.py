"""``shadowprice report``: regenerate the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shadowprice.cli.console import Output, print_json, print_line
from shadowprice.cli.options import PlainOutputOption, RunArgument


def report(
    run: RunArgument,
    to: Annotated[
        Path | None, typer.Option(help="Output file.", show_default="RUN/report.html")
    ] = None,
    output: PlainOutputOption = Output.TABLE,
) -> None:
    """Rebuild the HTML page of a run from its files.

    [bold]Example[/bold]
        shadowprice report run
    """
    from shadowprice.results.output_paths import always_replaceable, check_output_file, is_page
    from shadowprice.results.report.page import write_report
    from shadowprice.results.run_directory import REPORT, read_run

    path = to or run / REPORT
    # The run's own page may be replaced, whatever version wrote it.
    own = path.parent.resolve() == run.resolve() and path.name == REPORT
    if own:
        loaded = read_run(run)  # first: report a directory without a run as such
        check_output_file(path, always_replaceable)
    else:
        check_output_file(path, is_page)
        loaded = read_run(run)
    write_report(loaded, path)
    if output is Output.JSON:
        print_json({"page": str(path)})
    else:
        print_line(f"see {path}")
