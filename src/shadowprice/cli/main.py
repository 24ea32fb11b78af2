"""The ``shadowprice`` command: its parts, and what happens when something goes wrong."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Final, NoReturn

import typer

from shadowprice import __version__
from shadowprice.cli.lazy import LazyGroup, Part
from shadowprice.cli.stopping import INTERRUPTED, TERMINATED, terminable
from shadowprice.core import bounds
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.wording import escaped, is_text, shown
from shadowprice.extensions import file_failure

RUNS, LIVE, WORKLOADS, MORE = "Run and compare", "The live service", "Workloads", "More"


def _own(name: str, line: str, panel: str = RUNS) -> Part:
    """Return a command that is a function of its own module."""
    return _in(name, name, line, panel)


def _in(module: str, name: str, line: str, panel: str = LIVE) -> Part:
    """Return a command that is a function of another one's module."""
    return Part(f"shadowprice.cli.commands.{module}:{name}", line, panel)


def _group(name: str, line: str, panel: str) -> Part:
    """Return what has commands of its own: its module's."""
    return Part(f"shadowprice.cli.commands.{name}", line, panel)


PARTS: Final = {
    "simulate": _own("simulate", "Run a workload under one policy."),
    "compare": _own("compare", "Run a workload under several policies."),
    "whatif": _own("whatif", "What more servers, or fewer, would have earned."),
    "explain": _own("explain", "Tell a job's story: why, when, where."),
    "at": _own("at", "Who runs where in a slot of a run, and what waits."),
    "jobs": _own("jobs", "List the jobs of a run, chosen and sorted."),
    "diff": _own("diff", "Which jobs fared differently in two runs, and why."),
    "report": _own("report", "Write the page of a run again."),
    "bound": _own("bound", "Prove how much any schedule could earn."),
    "policies": _own("policies", "What each policy is, its parameters, its paper."),
    "warm": _own("warm", "Compile what policies need before they are used."),
    "statement": _own("statement", "What tenants paid: in a run, or live."),
    "journal": _own("journal", "Show the journal of a run, and check it."),
    "audit": _own("audit", "Check a run or its claims independently."),
    "serve": _own("serve", "Take jobs, promise, run them.", LIVE),
    "login": _own("login", "Which services there are, and tokens for them.", LIVE),
    "submit": _own("submit", "Submit jobs; tell what is promised.", LIVE),
    "quote": _in("submit", "quote", "What would become of jobs, if submitted."),
    "queue": _own("queue", "What runs and waits, as squeue shows it.", LIVE),
    "status": _in("queue", "status", "Where one job is, or the service."),
    "cancel": _in("queue", "cancel", "Withdraw jobs."),
    "revise": _in("queue", "revise", "Change a job's utility, work or deadline."),
    "logs": _in("follow", "logs", "What a job's processes write."),
    "prices": _in("nodes", "prices", "What servers cost in slots to come."),
    "nodes": _own("nodes", "Servers, as sinfo shows them.", LIVE),
    "drain": _in("nodes", "drain", "Give servers no more work."),
    "uncordon": _in("nodes", "uncordon", "Let servers take work again."),
    "until": _own("until", "When nothing runs any more.", LIVE),
    "observed": _own("observed", "What really ran, beside what would have.", LIVE),
    "events": _in("follow", "events", "Follow what happens."),
    "top": _in("follow", "top", "What runs and waits, on one screen."),
    "budget": _in("accounts", "budget", "What tenants may spend."),
    "tokens": _in("login", "tokens", "List, hand out and take back tokens."),
    "backup": _in("serve", "backup", "Copy all that a service keeps."),
    "profile": _own("profile", "Measure how fast a command trains.", WORKLOADS),
    "trace": Part(
        "shadowprice.cli.commands.trace", "Look at cluster traces, convert them.", WORKLOADS
    ),
    "generate": _in("trace", "generate", "Draw a workload.", WORKLOADS),
    "cloning": Part(
        "shadowprice.cli.commands.cloning", "How many copies of each task to run.", MORE
    ),
    "experiment": _own("experiment", "Regenerate a figure of a paper.", MORE),
}
"""Commands in the order of the help; those whose module is absent are not offered."""


class _Commands(LazyGroup):
    parts = PARTS


app = typer.Typer(
    name="shadowprice",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "[bold]Examples[/bold]\n\n"
        "shadowprice simulate --cluster cluster.yaml --jobs jobs.yaml --policy oasis --out run\n\n"
        "shadowprice explain run resnet50-a\n\n"
        "shadowprice compare --trace philly:philly.csv.gz --policy oasis,fifo,drf --out compared"
    ),
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"shadowprice {__version__}")
        raise typer.Exit


@app.callback()
def shadowprice(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the trace of an error; may stand anywhere.")
    ] = False,
) -> None:
    """Price-based scheduling of machine-learning training jobs on shared clusters.

    Who is admitted, when each job finishes, what it earns, and why one was refused.
    """
    del version, debug


@cache
def _parser() -> Any:
    """Return what reads a call; made once in a process, which may make many."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        In place of the process's own.

    Returns
    -------
    int
        0 done; 1 the run failed; 2 the call or an input is wrong; 130 interrupted, 143 terminated.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    command = _parser()
    streams = sys.stdout, sys.stderr
    with terminable() as termination:
        try:
            status = command.main(
                words or ["--help"], prog_name="shadowprice", standalone_mode=False
            )
            _flush()
        except SystemExit as exit_:
            sys.stdout, sys.stderr = streams  # the parser silences them where a pipe is closed
            if isinstance(exit_.__context__, BrokenPipeError):
                return _report(exit_.__context__)
            status = exit_.code
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except Exception as error:
            if debug:
                traceback.print_exception(error)
            return _report(error)
        if status == INTERRUPTED:
            status = termination.status
            # A run that was stopped has said more than this already.
            if not termination.told:
                _say("terminated" if status == TERMINATED else "interrupted")
    return status if isinstance(status, int) else 0


def run() -> NoReturn:
    """Run the command line; the entry point that the package installs."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before the program began
            setattr(sys, name, _Closed(open(os.devnull, "wb"), encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # What a terminal cannot show is shown escaped, instead of ending the command.
            stream.reconfigure(errors="backslashreplace")
    # What a command imports lives until it ends: a collector that looks through all of it again
    # and again, after every 700 new objects, takes a tenth of a small run.
    gc.set_threshold(50_000, 20, 50)
    if not sys.warnoptions:  # libraries' remarks to programmers say nothing to users
        warnings.simplefilter("ignore")
    status = main()
    # A service goes on without a place for its remarks; what others were asked for is lost.
    if not status and getattr(sys.stdout, "lost", False) and sys.argv[1:2] != ["serve"]:
        status = _report(BrokenPipeError())
    try:
        _flush()
    except OSError:  # reported by then; the interpreter must not try once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)


class _Closed(io.TextIOWrapper):
    """In place of a stream that was closed before the program began: it forgets what it is told.

    Attributes
    ----------
    lost : bool
        Whether that was anything.
    """

    lost = False

    def write(self, text: str) -> int:
        self.lost = self.lost or bool(text)
        return super().write(text)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _report(error: Exception) -> int:
    if isinstance(error, InputError) and len(error.faults) > 1:
        _say(f"error: {len(error.faults)} faults, nothing was run")
        most = int(bounds.FAULTS.most)
        for fault in error.faults[:most]:
            _say(f"  {fault}")
        if len(error.faults) > most:
            _say("  and more; these come first")
        return error.exit_code
    if hasattr(error, "format_message"):  # what the command line parser refuses
        context = getattr(error, "ctx", None)
        path = "shadowprice" if context is None else context.command_path
        words = " ".join(error.format_message().split()).rstrip(".")
        option = getattr(error, "option_name", None) or ""
        if option[:1] == "-" and option[1:2].isdecimal():  # a slot, say, in place of an argument
            words = f"{shown(option)} is no option, and no number here is below 0"
        if words:  # a group called without a command has printed its help already
            _say(f"error: {words}{'' if words.endswith('?') else ';'} see {path} --help")
        return 2
    if isinstance(error, ShadowpriceError):
        _say(f"error: {error}")
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        _say("error: the output was closed before all of it was written")
        return 1
    if isinstance(error, OSError):
        _say(f"error: {_named(error)}")
        return 1
    if isinstance(error, UnicodeEncodeError) and not is_text(error.object):
        _say(f"error: {shown(error.object)} holds bytes that are no text; write it as UTF-8")
        return 2
    if isinstance(error, MemoryError):
        _say("error: this needs more memory than there is; run a smaller workload, or a part of it")
        return 1
    if (failure := file_failure(error)) is not None:
        _say(f"error: {failure}")
        return 1
    words = " ".join(str(error).split()) or "no message"
    _say(
        f"error: unexpected {type(error).__name__}: {words}; "
        "this is a bug: run again with --debug and report the trace"
    )
    return 1


def _named(error: OSError) -> str:
    """Return what the system refused, where, and what helps."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    where = f"{error.filename2 or error.filename}: " if error.filename else ""
    mend = {
        errno.ENOSPC: "make room, or write elsewhere",
        errno.EDQUOT: "make room, or write elsewhere",
        errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
        errno.EROFS: "write elsewhere",
        errno.EACCES: "change its permissions, or write elsewhere",
        errno.EPERM: "change its permissions, or write elsewhere",
        errno.ENOENT: "was a folder removed while this ran?",
        errno.ENAMETOOLONG: "give a shorter name",
    }.get(error.errno or 0)
    return f"{where}{reason}" + (f"; {mend}" if mend else "")


_LONGEST: Final = 2_000
"""Characters of a line on stderr."""


def _say(text: str) -> None:
    line = escaped(text)
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 4 :]}"
    with suppress(OSError):  # stderr may be closed as well: the status still tells
        print(line, file=sys.stderr, flush=True)
