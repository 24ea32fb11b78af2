"""The ``shadowprice`` command: its subcommands and error handling."""

from __future__ import annotations

import errno
import gc
import io
import os
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Annotated, Any, Final, NoReturn

import typer

from shadowprice import __version__
from shadowprice.cli.lazy import LazyGroup, Part
from shadowprice.cli.program import CLOSED, INTERRUPTED, TERMINATED, called_program, terminable
from shadowprice.core import bounds
from shadowprice.core.collection import THRESHOLDS
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.wording import escape_controls, is_valid_utf8, quote_for_display
from shadowprice.extensions import file_failure

RUNS, LIVE, WORKLOADS, MORE = "Simulation", "Live service", "Workloads", "Other"


def _part(target: str, line: str, panel: str = LIVE) -> Part:
    """Return the entry of a command; ``target`` is ``module:function``, or a module of an app."""
    return Part(f"shadowprice.cli.commands.{target}", line, panel)


PARTS: Final = {
    "simulate": _part("simulate:simulate", "Run a workload under one policy.", RUNS),
    "compare": _part("simulate:compare", "Run a workload under several policies.", RUNS),
    "whatif": _part("whatif:whatif", "Compute the effect of more or fewer servers.", RUNS),
    "explain": _part("explain:explain", "Show a job's history and decisions.", RUNS),
    "at": _part("runs:at", "Show running and waiting jobs in a slot of a run.", RUNS),
    "jobs": _part("runs:jobs", "List, filter and sort the jobs of a run.", RUNS),
    "diff": _part("runs:diff", "Compare the jobs of two runs.", RUNS),
    "report": _part("runs:report", "Rebuild the HTML page of a run.", RUNS),
    "bound": _part("bound:bound", "Prove an upper bound on any schedule's utility.", RUNS),
    "policies": _part("policies:policies", "List policies, their parameters and papers.", RUNS),
    "warm": _part("policies:warm", "Compile the kernels of policies in advance.", RUNS),
    "statement": _part(
        "accounts:statement", "Show the payments of tenants, in a run or live.", RUNS
    ),
    "journal": _part("runs:journal", "Show and check the journal of a run.", RUNS),
    "audit": _part("audit:audit", "Audit a policy's properties for tenants.", RUNS),
    "serve": _part("serve:serve", "Run the service."),
    "login": _part("login:login", "Save and list services and their tokens."),
    "submit": _part("submit", "Submit a command or jobs and show their promises."),
    "quote": _part("submit:quote", "Query the promise of jobs without submission."),
    "queue": _part("queue:queue", "List running and waiting jobs, as squeue does."),
    "status": _part("queue:status", "Show the status of a job or the service."),
    "cancel": _part("queue:cancel", "Cancel jobs."),
    "resubmit": _part("queue:resubmit", "Submit closed jobs again."),
    "requeue": _part("queue:requeue", "Cancel jobs if needed and submit them again."),
    "revise": _part("queue:revise", "Revise a job's utility, work or deadline."),
    "logs": _part("follow:logs", "Print the output of a job's processes."),
    "prices": _part("nodes:prices", "Show prices of servers in the next slots."),
    "nodes": _part("nodes:nodes", "List servers, as sinfo does."),
    "drain": _part("nodes:drain", "Stop placing work on servers, and move their jobs away."),
    "cordon": _part("nodes:cordon", "Stop placing work on servers; jobs there run on."),
    "uncordon": _part("nodes:uncordon", "Return drained or cordoned servers to service."),
    "until": _part("nodes:until", "Show or set the end of the timespan."),
    "observed": _part("nodes:observed", "Compare observed with simulated execution."),
    "events": _part("follow:events", "Stream events."),
    "top": _part("follow:top", "Show the live service on one screen."),
    "budget": _part("accounts:budget", "Show and change budgets of tenants."),
    "tokens": _part("login:tokens", "List, issue and revoke tokens."),
    "backup": _part("serve:backup", "Back up the data of a service."),
    "profile": _part("profile:profile", "Measure a command's training speed.", WORKLOADS),
    "trace": _part("trace", "Inspect and convert cluster traces.", WORKLOADS),
    "generate": _part("trace:generate", "Generate a workload.", WORKLOADS),
    "cloning": _part("cloning", "Choose the number of copies of each task.", MORE),
    "experiment": _part("experiment:experiment", "Regenerate a figure of a paper.", MORE),
}
"""Commands in the order of the help."""


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


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"shadowprice {__version__}")
        raise typer.Exit


@app.callback()
def shadowprice(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the traceback of an error; valid anywhere on the command line."
        ),
    ] = False,
) -> None:
    """Schedule machine-learning training jobs on shared clusters by resource prices.

    Shows which jobs are admitted, when each completes, its utility, and why a job is refused.
    """
    del version, debug


@cache
def _parser() -> Any:
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    ``arguments`` defaults to those of the process. The status is 0 for success, 1 for a failed run,
    2 for an invalid call or input, 130 for SIGINT, 141 for a closed pipe and 143 for SIGTERM.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    return report_errors(partial(run_command, argv), debug="--debug" in _own_words(argv))


def run_command(arguments: Sequence[str]) -> object:
    """Run one command and return its exit status, None for success; its errors are raised."""
    own = _own_words(arguments)
    argv = [*(word for word in own if word != "--debug"), *arguments[len(own) :]]
    return _parser().main(argv or ["--help"], prog_name=called_program.get(), standalone_mode=False)


def _own_words(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments before ``--``; the others belong to the command of a job."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def report_errors(call: Callable[[], object], *, debug: bool) -> int:
    """Return the exit status of a call; report its errors on stderr. SIGTERM ends the call."""
    streams = sys.stdout, sys.stderr
    with terminable() as termination, _stdout_descriptor() as descriptor:
        try:
            status = call()
            _flush()
        except SystemExit as exit_:
            sys.stdout, sys.stderr = streams  # the parser replaces them if a pipe is closed
            if isinstance(exit_.__context__, BrokenPipeError):
                return _report(exit_.__context__, descriptor)
            status = exit_.code
            if isinstance(status, str):  # Python itself prints the text and exits with status 1
                _say(status)
                status = 1
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except Exception as error:
            if debug:
                traceback.print_exception(error)
            return _report(error, descriptor)
        if status == INTERRUPTED:
            status = termination.status
            # A stopped run has already printed a more specific message.
            if not termination.reported:
                _say("terminated" if status == TERMINATED else "interrupted")
    return status if isinstance(status, int) else 0


def run(command: Callable[[], int] = main) -> NoReturn:
    """Prepare the streams of the process, run a command and exit."""
    if sys.stdin is None:  # first: otherwise another file gets its descriptor
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the file descriptor was closed before the program started
            setattr(sys, name, _Closed(open(os.devnull, "wb"), encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # Escape characters that the terminal's encoding lacks instead of raising an error.
            stream.reconfigure(errors="backslashreplace")
    _redirect_libraries()
    gc.set_threshold(*THRESHOLDS)
    if not sys.warnoptions:  # warnings of libraries address programmers, not users
        warnings.simplefilter("ignore")
    status = command()
    # A service doesn't need stdout, but the output of any other command is lost.
    if not status and getattr(sys.stdout, "lost", False) and sys.argv[1:2] != ["serve"]:
        _say("error: stdout was closed before the command started; its output is lost")
        status = 1
    try:
        _flush()
    except OSError:  # already reported; stop the interpreter from flushing again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _redirect_libraries() -> None:
    """Redirect output of libraries and child processes to file descriptor 1 to stderr.

    Solvers write there directly, in the middle of JSON. ``sys.stdout`` keeps the process's stdout
    under another descriptor.
    """
    original = sys.stdout
    if isinstance(original, _Closed) or not isinstance(original, io.TextIOWrapper):
        return
    original.flush()
    descriptor = os.dup(original.fileno())
    try:
        os.dup2(2, original.fileno())
    except OSError:  # stderr was closed before the program started
        os.dup2(os.open(os.devnull, os.O_WRONLY), original.fileno())
    stream = open(  # noqa: PTH123, SIM115  # a descriptor; open until the process ends
        descriptor, "w", encoding=original.encoding, errors=original.errors
    )
    stream.reconfigure(line_buffering=original.line_buffering, write_through=original.write_through)
    sys.stdout = stream


class _Closed(io.TextIOWrapper):
    """Replacement for a stream that was closed before the program started; discards output."""

    lost = False  # whether there was output

    def write(self, text: str) -> int:
        self.lost = self.lost or bool(text)
        return super().write(text)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


@contextmanager
def _stdout_descriptor() -> Iterator[int | None]:
    """Yield a duplicate of stdout's descriptor, or None if it has none.

    The duplicate is needed because the help's console replaces the descriptor after a broken pipe.
    """
    try:
        descriptor = os.dup(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_closed(descriptor: int | None) -> bool:
    """Return whether the reader of a stream has closed it."""
    if descriptor is None:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and hang-ups are always reported
    return bool(poll.poll(0))


def _report_notes(error: Exception) -> None:
    for note in getattr(error, "__notes__", ()):
        _say(f"hint: {note}")


def _replace_wording(error: Exception) -> None:
    """Replace pydantic's wording in an error of the command-line parser."""
    issues = getattr(error.__cause__, "errors", None)
    if issues is not None and hasattr(error, "message"):
        from shadowprice.core.specs.faults import issue_text

        message, hint = issue_text(issues()[0])
        error.message = f"{message}; {hint}" if hint else message


def _report(error: Exception, stdout: int | None) -> int:
    """Print an error and return the exit status; ``stdout`` is stdout's descriptor."""
    if isinstance(error, InputError) and len(error.faults) > 1:
        _say(f"error: found {len(error.faults)} problems in the input; nothing was run")
        limit = int(bounds.FAULTS.maximum)
        for fault in error.faults[:limit]:
            _say(f"  {fault}")
        if len(error.faults) > limit:
            _say("  and more")
        _report_notes(error)
        return error.exit_code
    if hasattr(error, "format_message"):  # raised by the command-line parser
        context = getattr(error, "ctx", None)
        path = called_program.get() if context is None else context.command_path
        _replace_wording(error)
        message = " ".join(error.format_message().split()).rstrip(".")
        option = getattr(error, "option_name", None) or ""
        if option[:1] == "-" and option[1:2].isdecimal():  # a negative number as an argument
            shown = quote_for_display(option)
            message = f"{shown} is not a known option, and negative numbers are not valid here"
        if message:  # a group without a command has already printed its help
            _say(f"error: {message}{'' if message.endswith('?') else ';'} see {path} --help")
        return 2
    if isinstance(error, ShadowpriceError):
        _say(f"error: {error}")
        _report_notes(error)
        return error.exit_code
    # Other pipes and sockets may break too, and those are errors.
    if isinstance(error, BrokenPipeError) and _is_closed(stdout):
        return CLOSED  # without a message: `shadowprice queue | head` is not an error
    if isinstance(error, OSError):
        _say(f"error: {_describe_os_error(error)}")
        return 1
    if isinstance(error, UnicodeEncodeError) and not is_valid_utf8(error.object):
        shown = quote_for_display(error.object)  # an argument with bytes that aren't UTF-8
        _say(f"error: {shown} contains bytes that are not valid text; use UTF-8")
        return 2
    if isinstance(error, MemoryError):
        _say("error: out of memory; run a smaller workload")
        return 1
    if (failure := file_failure(error)) is not None:
        _say(f"error: {failure}")
        return 1
    message = " ".join(str(error).split()) or "no message"
    _say(
        f"error: unexpected {type(error).__name__}: {message}; "
        "this is a bug: run again with --debug and report the trace"
    )
    return 1


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    location = f"{error.filename2 or error.filename}: " if error.filename else ""
    hint = {
        errno.ENOSPC: "make room, or write elsewhere",
        errno.EDQUOT: "make room, or write elsewhere",
        errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
        errno.EROFS: "write elsewhere",
        errno.EACCES: "change its permissions, or use another path",
        errno.EPERM: "change its permissions, or use another path",
        errno.ENOENT: "was a folder removed while this ran?",
        errno.ENAMETOOLONG: "give a shorter name",
    }.get(error.errno or 0)
    return f"{location}{reason}" + (f"; {hint}" if hint else "")


_MAX_LINE_CHARS: Final = 2_000  # maximum length of a line on stderr, in characters


def _say(text: str) -> None:
    line = escape_controls(text)
    if len(line) > _MAX_LINE_CHARS:
        line = f"{line[: _MAX_LINE_CHARS // 2]} ... {line[-_MAX_LINE_CHARS // 4 :]}"
    with suppress(OSError):  # stderr may be closed; the exit status still reports the error
        print(line, file=sys.stderr, flush=True)
