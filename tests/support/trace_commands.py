"""The trace commands, called in the test's process."""

import typer
from typer.testing import CliRunner

from shadowprice.cli.commands.trace import app as trace_app
from shadowprice.cli.commands.trace import generate

app = typer.Typer()
app.add_typer(trace_app, name="trace")
app.command()(generate)


def run_trace_command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout
