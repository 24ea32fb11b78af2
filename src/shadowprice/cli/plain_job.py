"""Job records for plain commands: ``shadowprice submit [options] -- COMMAND...``."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from shadowprice.cli.console import periodic_note, print_note, stderr
from shadowprice.core import bounds
from shadowprice.core.amounts import parse_duration, parse_positive_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.moments import SECOND, parse_moment_ahead
from shadowprice.core.submit_options import minibatch_time, run_time_text
from shadowprice.core.wording import pluralize, quote_for_display
from shadowprice.uploads.host import host_identity

if TYPE_CHECKING:
    from shadowprice.client import Client
    from shadowprice.rest import ServiceStatus, UploadLimits


PASSED_VARIABLES: Final = (
    "PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
    "CUDA_HOME", "LANG", "LC_ALL", "TZ",
)  # fmt: skip
"""Variables that a job gets from its submitter: they select programs, and hold no secrets."""

JOB_OPTIONS: Final = "Command"
"""Heading of the options that describe a job. Only these are valid in headers of scripts."""

_option: Final = partial(typer.Option, rich_help_panel=JOB_OPTIONS)
COMMAND: Final = "shadowprice.command"  # key of the words after ``--`` in a context's ``meta``
_SUFFIX_CHARACTERS: Final = "23456789abcdefghjkmnpqrstuvwxyz"
_SUFFIX_LENGTH: Final = 6
_MAX_STEM: Final = 40  # maximum characters of a generated name before the suffix
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")
"""The unambiguous form of Slurm's durations, ``d-hh:mm:ss``."""

_SLURM_TIME: Final = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?"
    r"|(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)|(?P<only>\d+))"
)
"""Any form of Slurm's durations; a single number is in minutes."""

_GPUS: Final = re.compile(r"(?:(?P<kind>[A-Za-z0-9_.-]+):)?(?P<count>\d+(?:\.\d{1,3})?)")


class CommandAfterDashes(TyperCommand):
    """A command with its own arguments before ``--``, and the words of a job's command after."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``; store the words after it in ``ctx.meta``."""
        if "--" in args:
            dashes = args.index("--")
            ctx.meta[COMMAND] = args[dashes + 1 :]
            args = args[:dashes]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of ``submit`` that describe the job of a command."""

    gpus: Annotated[
        str | None,
        _option("--gpus", "-g", help="GPUs: 2, or a100:2 for a kind of GPU.", metavar="N"),
    ] = None
    cpus: Annotated[
        float | None, _option(help="CPU cores.", min=0.001, show_default="1 without GPUs")
    ] = None
    memory: Annotated[str | None, _option(help="Memory, such as 16GiB.")] = None
    time: Annotated[
        str | None,
        _option(
            help="Expected run time, such as 3h or 3:00:00. A job that takes longer isn't stopped.",
            show_default="predicted from your earlier jobs",
        ),
    ] = None
    walltime: Annotated[
        str | None,
        _option(
            help="Time limit after which the job is stopped, such as 8h or 8:00:00.",
            metavar="TIME",
            show_default="none",
        ),
    ] = None
    steps: Annotated[
        int | None,
        _option(help="Mini-batches of the job, if the command reports its progress.", min=1),
    ] = None
    by: Annotated[
        str | None, _option(help="Deadline: 18:00, 2026-12-01T18:00 or 6h.", metavar="TIME")
    ] = None
    priority: Annotated[
        str | None,
        _option(
            help="Priority: low, normal, high or urgent.", metavar="PRIORITY", show_default="normal"
        ),
    ] = None
    name: Annotated[str | None, _option(help="Name of the job.", show_default="generated")] = None
    tenant: Annotated[
        str | None, _option("--tenant", "-t", help="Tenant of the job; only for operators.")
    ] = None
    workdir: Annotated[
        Path | None,
        _option(help="Working directory.", metavar="DIR", show_default="the current directory"),
    ] = None
    upload: Annotated[
        bool | None,
        typer.Option(
            "--upload/--no-upload",
            help="Send the files of the directory to the service, which runs the job in a copy. "
            ".gitignore and .shadowpriceignore exclude files.",
            show_default="sent if the service doesn't see the directory, unless --workdir is given",
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        _option(
            help="Environment variable, or the name of one to copy; repeatable.",
            metavar="NAME[=VALUE]",
        ),
    ] = None
    retries: Annotated[
        int | None, _option(help="Maximum number of retries after failures.", min=0)
    ] = None
    user: Annotated[
        str | None, _option(help="User that runs the command, if the service allows it.")
    ] = None

    def given(self) -> list[str]:
        """Return the options that were given, as written on the command line."""
        return [
            f"--{field.name}"
            for field in fields(JobOptions)
            if getattr(self, field.name) not in (None, [])
        ]


@dataclass(frozen=True)
class PlainJob(JobOptions):
    """A command and the options that describe its job."""

    words: Sequence[str]
    program: str = ""  # must be executable on the machine that runs the command
    title: str = ""  # start of a generated name

    def record(
        self, client: Client, send: Callable[[Path, UploadLimits], str | None]
    ) -> dict[str, Any]:
        """Return the job's record; ``send`` sends a directory and returns its digest."""
        if not self.words:
            raise InputError(Fault("COMMAND", "is missing after --", "write -- python train.py"))
        status = client.service()
        # On the same host, jobs see the files of this process under the same names.
        same_host = status.host is not None and status.host == host_identity()
        directory = self._directory(same_host)
        environment = self._environment(same_host)
        if same_host:
            _check_program(self.program, str(directory), environment.get("PATH"))
        record = {
            "name": generate_name(self.title) if self.name is None else self.name,
            "tenant": self.tenant,
            **self._work(),
            "walltime": self._time_limit(),
            "worker": self._worker(),
            "by": None if self.by is None else absolute_moment(self.by, "--by"),
            "priority": self.priority,
        }
        run: dict[str, Any] = {"command": list(self.words)}
        if self.sends_files(same_host):  # last, because it is slow
            run["upload"] = send(directory, self._upload_limits(status, directory, client))
        elif same_host or self.workdir is not None:
            run["workdir"] = str(directory)
        run |= {"env": environment, "retries": self.retries, "user": self.user}
        run["from_options"] = True
        record["run"] = {key: value for key, value in run.items() if value not in (None, {})}
        return {key: value for key, value in record.items() if value is not None}

    def _work(self) -> dict[str, Any]:
        """Return the keys that state the work; {} if neither time nor steps are known.

        The expected time is the time of one step, or of ``steps`` steps together.
        """
        if self.time is None:
            return {} if self.steps is None else {"steps": self.steps}
        text, seconds = parse_run_time(self.time, "--time")
        steps = self.steps or 1
        if steps > seconds * 10**9:  # a job file has times in nanoseconds
            message = f"each of {steps:,} steps would take less than a nanosecond"
            raise InputError(Fault("--steps", message, "give fewer steps, or a longer --time"))
        return {"steps": steps, "minibatch_time": minibatch_time(text, seconds, steps)}

    def _time_limit(self) -> str | None:
        """Return the time limit; refuse a limit below the expected run time."""
        if self.walltime is None:
            return None
        text, limit = parse_run_time(self.walltime, "--walltime")
        if self.time is not None and limit < parse_run_time(self.time, "--time")[1]:
            message = f"{self.walltime} is less than the expected run time {self.time}"
            raise InputError(Fault("--walltime", message, "raise it, or give a shorter --time"))
        return text

    def _worker(self) -> dict[str, Any]:
        worker: dict[str, Any] = {}
        if self.gpus is not None:
            match = _GPUS.fullmatch(self.gpus)
            if match is None:
                message = f"expected a number, got {quote_for_display(self.gpus)}"
                raise InputError(Fault("--gpus", message, "write 2, or a100:2 for a kind"))
            kind = "gpu" if match["kind"] is None else f"gpu/{match['kind']}"
            if float(match["count"]) > 0:
                worker[kind] = float(match["count"])
        if self.cpus is not None:
            worker["cpu"] = self.cpus
        elif not worker:
            worker["cpu"] = 1
        if self.memory is not None:
            worker["memory"] = self.memory
        return worker

    def sends_files(self, same_host: bool) -> bool:
        """Return whether to send the files of the directory; ``same_host`` if jobs see them."""
        return self.upload if self.upload is not None else not same_host and self.workdir is None

    def _directory(self, same_host: bool) -> Path:
        try:
            directory = (Path.cwd() / (self.workdir or "")).absolute()
        except FileNotFoundError:
            raise InputError(Fault("--workdir", "the current directory was removed")) from None
        if (same_host or self.sends_files(same_host)) and not directory.is_dir():
            raise InputError(Fault("--workdir", f"{str(directory)!r} is not a directory"))
        return directory

    def _upload_limits(
        self, status: ServiceStatus, directory: Path, client: Client
    ) -> UploadLimits:
        """Return the limits of uploads; refuse to send a home directory by accident."""
        if status.uploads is None:
            hint = (
                "give --workdir DIR, a directory on the machines that run jobs, or --no-upload if "
                "the job needs no files, for example because its image has them"
            )
            message = "this service runs jobs on other machines, and accepts no files"
            raise InputError(Fault(client.address.url, message, hint))
        home = Path(os.environ.get("HOME") or "/")
        if self.upload is None and directory.resolve() in {home.resolve(), Path("/")}:
            message = f"{str(directory)!r} would be sent to {client.address.url}"
            hint = "change to the directory of the job, or give --upload to send this one"
            raise InputError(Fault("--upload", message, hint))
        return status.uploads

    def _environment(self, same_host: bool) -> dict[str, str]:
        """Return the variables of the job: `PASSED_VARIABLES` on the same host, and --env."""
        passed = PASSED_VARIABLES if same_host else ()
        variables = {name: os.environ[name] for name in passed if name in os.environ}
        for pair in self.env or ():
            name, equals, value = pair.partition("=")
            if not equals and name not in os.environ:
                hint = "write NAME=VALUE, or NAME to copy a variable"
                raise InputError(Fault("--env", f"{quote_for_display(pair)} isn't set", hint))
            variables[name] = value if equals else os.environ[name]
        return variables


def parse_run_time(text: str, option: str) -> tuple[str, Fraction]:
    """Parse a duration, also in Slurm's form; return its text for a job file, and its seconds."""
    if _CLOCK.fullmatch(text):
        text = f"{parse_slurm_seconds(text)}s"
    elif seconds := parse_slurm_seconds(text):
        hint = f"write {run_time_text(Fraction(seconds))}, as Slurm reads it, or a unit such as 3h"
        message = f"{quote_for_display(text)} is a duration without a unit"
        raise InputError(Fault(option, message, hint))
    return text, parse_positive_duration(text, option, "3h")


def parse_slurm_seconds(text: str) -> int | None:
    """Return the seconds of a time in any of Slurm's forms; None if it has another form."""
    # Check the length first, because Python refuses to convert thousands of digits.
    match = _SLURM_TIME.fullmatch(text) if len(text) <= bounds.QUANTITY.maximum else None
    if match is None:
        return None
    days, h, m, s, hours, minutes, seconds, only = (int(part or 0) for part in match.groups())
    return ((days * 24 + h + hours) * 60 + m + minutes + only) * 60 + s + seconds


def command_title(words: Sequence[str]) -> str:
    """Return the name of a command's script without its suffix, else the name of its program."""
    script = next((word for word in words if word.endswith((".py", ".sh"))), None)
    return Path("".join(words[:1])).name if script is None else Path(script).stem


def generate_name(title: str) -> str:
    """Return a name such as ``train-x7k2mf``: a command's title, and random characters."""
    stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:_MAX_STEM]
    return f"{stem.rstrip('-') or 'job'}-{_suffix()}"


def generate_repeated_name(name: str) -> str:
    """Return a name for the repetition of a job: the same, with other random characters."""
    # An end of letters without a digit isn't a generated suffix, but a word such as resnet.
    stem = re.sub(rf"-(?=[a-z]*[2-9])[{_SUFFIX_CHARACTERS}]{{{_SUFFIX_LENGTH}}}$", "", name)
    return f"{stem[: int(bounds.NAME.maximum) - _SUFFIX_LENGTH - 1]}-{_suffix()}"


def _suffix() -> str:
    """Return random characters with at least one digit, so that they don't look like a word."""
    while True:
        suffix = "".join(secrets.choice(_SUFFIX_CHARACTERS) for _ in range(_SUFFIX_LENGTH))
        if not suffix.isalpha():
            return suffix


def absolute_moment(text: str, location: str) -> str:
    """Return a moment for the service: a duration unchanged, a local clock time in UTC."""
    try:
        parse_duration(text)
    except InputError:
        moment = parse_moment_ahead(text, time.time_ns(), Fraction(1), location)
        return datetime.fromtimestamp(moment // SECOND, UTC).isoformat()
    return text


def _check_program(program: str, directory: str, path: str | None) -> None:
    """Refuse a program that isn't on ``path``, or isn't executable."""
    # A program with a slash is relative to the job's directory.
    searched = str(Path(directory) / program) if "/" in program else program
    if shutil.which(searched, path=path) is None:
        hint = "write a program that a shell would find, such as: -- python train.py"
        shown = quote_for_display(program)
        raise InputError(Fault("COMMAND", f"{shown} is not an executable program", hint))


def with_absolute_deadline(record: Mapping[str, Any], location: str) -> Mapping[str, Any]:
    """Return a job's record with its deadline ``by`` independent of the time zone."""
    by = record.get("by")
    if not isinstance(by, str):  # the service reports other values
        return record
    return {**record, "by": absolute_moment(by, f"{location}.by")}


_MAX_NAMED: Final = 5  # limit of names in a note


def send_directory(
    client: Client,
    directory: Path,
    limits: UploadLimits,
    tenant: str | None,
    *,
    quiet: bool,
    dry_run: bool,
) -> str | None:
    """Send the files of a directory, unless the service has them; return their digest.

    With ``dry_run``, only print what would be sent, and return None. Raises `InputError` if the
    files exceed a limit, can't be read or change meanwhile.
    """
    from shadowprice.uploads.packing import select_files, shown_bytes, temporary_archive

    selection = select_files(directory, max_bytes=limits.max_bytes, max_entries=limits.max_entries)
    what = f"{pluralize(len(selection.files), 'entry')} of {directory}"
    size = shown_bytes(selection.size)
    if selection.left_out and not quiet:
        names, remaining = selection.left_out[:_MAX_NAMED], len(selection.left_out) - _MAX_NAMED
        more = f" and {remaining:,} more" if remaining > 0 else ""
        print_note(f"left out links to outside and special files: {', '.join(names)}{more}")
    if dry_run:
        print_note(f"would send {what} ({size})")
        return None
    sent: list[int] = []  # empty if the service already has the files
    with temporary_archive(selection) as archive, _progress(what, archive.size, quiet) as show:

        def on_sent(done: int) -> None:
            sent[:] = [done]
            show(done)

        client.upload(archive, tenant=tenant, sent=on_sent)
        digest = archive.digest
    if not quiet:
        text = f"sent {what} ({size})" if sent else f"the service has the {what} ({size})"
        print_note(f"{text}; what the job writes there isn't copied back")
    return digest


@contextmanager
def _progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show the progress of sending: a bar on a terminal, otherwise a line at intervals."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = stderr()
    if not quiet and console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("sending files", total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    note = periodic_note()

    def print_progress(done: int) -> None:
        if not quiet:
            note(lambda: f"sending {what}: {100 * done // total} %")

    yield print_progress
