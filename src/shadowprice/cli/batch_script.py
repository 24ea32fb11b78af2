"""Batch scripts: ``shadowprice submit train.sh`` submits the script's current content.

Header lines give options of ``submit``: ``#SHADOWPRICE --gpus 2 --time 3h``. Common ``#SBATCH``
lines are understood, so that scripts for Slurm can be submitted unchanged. As with ``sbatch``, the
header ends at the first command.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from shadowprice.cli import plain_job
from shadowprice.cli.plain_job import COMMAND, JOB_OPTIONS, CommandAfterDashes
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.program import build_script_command
from shadowprice.core.wording import hint_for_unknown, quote_for_display, text_problem

SCRIPT: Final = "shadowprice.script"  # key of the `BatchScript` in a context's ``meta``
_OWN: Final = "#SHADOWPRICE"  # start of a header line with options of ``submit``
_SLURM: Final = "#SBATCH"  # start of a header line with options of ``sbatch``
_DEFAULT_INTERPRETER: Final = ("bash",)

# The operating system passes the rest of the line to the interpreter as a single argument.
_SHEBANG: Final = re.compile(r"#!\s*(\S+)(?:[ \t]+(.*\S))?\s*")


@dataclass(frozen=True, slots=True)
class HeaderOption:
    """An option in a script's header, and its location."""

    name: str
    value: str
    location: str


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A script to submit."""

    path: Path
    text: str  # content at the submission
    options: Sequence[HeaderOption] = ()  # options of ``submit``; later options take precedence
    ignored: Sequence[str] = ()  # ``#SBATCH`` options that have no counterpart

    @property
    def interpreter(self) -> Sequence[str]:
        """Words of the interpreter: those of the first line, or ``bash``."""
        match = _SHEBANG.fullmatch(self.text.partition("\n")[0])
        if match is None:
            return _DEFAULT_INTERPRETER
        return tuple(word for word in match.groups() if word is not None)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the words of the command that runs the script with arguments."""
        return build_script_command(self.path.name, self.text, self.interpreter, arguments)


def is_script(path: Path) -> bool:
    """Return whether a file is a script: its name ends in ``.sh``, or it begins with ``#!``."""
    if path.suffix == ".sh":
        return True
    try:
        if not path.is_file():  # a pipe can be read only once, and not here
            return False
        with path.open("rb") as file:
            return file.read(len(BOM_UTF8) + 2).removeprefix(BOM_UTF8).startswith(b"#!")
    except OSError:
        return False


def check_is_no_program(files: Sequence[Path]) -> None:
    """Refuse files that look like a command without ``--`` before it."""
    first = files[0]
    is_python = first.suffix == ".py"
    try:
        is_program = is_python or (not first.exists() and shutil.which(str(first)) is not None)
    except OSError:  # the name is too long
        return
    if not is_program:
        return
    command = shlex.join([*(["python"] if is_python else []), *map(str, files)])
    hint = f"write -- before a command: -- {command}"
    raise InputError(Fault(str(first), "is a program, not a job file", hint))


def read_script(path: Path) -> BatchScript:
    """Read a script and its header; refuse an unreadable script or an invalid header."""
    try:
        with path.open("rb") as file:
            content = file.read(int(bounds.SCRIPT.maximum) + 1)
    except OSError as error:
        raise InputError(Fault(str(path), f"can't be read: {error.strerror}")) from error
    if len(content) > bounds.SCRIPT.maximum:
        hint = "move its code into files that the script runs"
        raise InputError(Fault(str(path), bounds.SCRIPT.broken, hint))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Fault(str(path), "is not UTF-8 text")) from error
    problem = text_problem(text)
    if problem is not None:
        raise InputError(Fault(str(path), *problem))
    if "\r\n" in text:
        hint = f"convert it: sed -i 's/\\r$//' {shlex.quote(str(path))}"
        raise InputError(Fault(str(path), "has line endings of Windows", hint))
    if "\r" in text and "\n" not in text:
        hint = f"convert it: sed -i 's/\\r/\\n/g' {shlex.quote(str(path))}"
        raise InputError(Fault(str(path), "has line endings of classic Mac OS", hint))
    if not text.strip():
        raise InputError(Fault(str(path), "is empty", "write the commands to run"))
    header = [*_header(path, text)]
    ignored: list[str] = []
    slurm = [*_slurm_options((entry for key, entry in header if key == _SLURM), ignored)]
    own = [entry for key, entry in header if key == _OWN]
    return BatchScript(path, text, (*slurm, *own), tuple(dict.fromkeys(ignored)))


class ScriptCommand(CommandAfterDashes):
    """A command that takes options from the header of a script among its arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a script's header and the arguments; give hints for options of other tools."""
        try:
            return self._parse_with_header(ctx, args)
        except Exception as error:  # the parser's exceptions have no public names
            name = getattr(error, "option_name", None)
            hint = _OTHER_OPTIONS.get(name) if isinstance(name, str) else None
            if hint is None:
                if hasattr(error, "ctx"):
                    error.ctx = error.ctx or ctx  # so that the message names the command
                raise
            raise InputError(Fault(str(name), "unknown option", hint)) from error

    def _parse_with_header(self, ctx: Any, args: list[str]) -> list[str]:
        before_dashes = args[: args.index("--")] if "--" in args else args
        given, _, _ = self.make_parser(ctx).parse_args(args=list(before_dashes))
        files = [Path(file) for file in given.get("files") or () if isinstance(file, str)]
        # During shell completion, parsing is resilient, and no script is read.
        scripts = [] if ctx.resilient_parsing else [file for file in files if is_script(file)]
        if not scripts:
            return super().parse_args(ctx, args)
        if len(files) > 1:
            check_is_no_program(files)
            others = [str(file) for file in files]
            others.remove(str(scripts[0]))
            words = shlex.join([*others, *args[len(before_dashes) + 1 :]])
            call = f"{shlex.quote(str(scripts[0]))} -- {words}"
            hint = f"write arguments of the script after --: {call}"
            raise InputError(Fault(others[0], "not valid with a script", hint))
        script = read_script(scripts[0])
        params = {
            name: param
            for param in self.get_params(ctx)
            if getattr(param, "rich_help_panel", None) == JOB_OPTIONS
            for name in param.opts
        }
        options = [self._check_option(entry, params, ctx) for entry in script.options]
        # An option that the command line overrides has no location in the script.
        in_force = [entry for entry in options if params[entry.name].name not in given]
        ctx.meta[SCRIPT] = replace(script, options=in_force)
        ctx.meta.setdefault(COMMAND, [])
        # Each option is a single word, because a value may be --.
        header = [f"{entry.name}={entry.value}" for entry in options]
        return super().parse_args(ctx, [*header, *args])

    def _check_option(
        self, entry: HeaderOption, params: Mapping[str, Any], ctx: Any
    ) -> HeaderOption:
        """Return an option of a header with its long name; refuse unknown names and values."""
        if entry.name not in params:
            long_names = ", ".join(name for name in params if name.startswith("--"))
            default_hint = _OTHER_OPTIONS.get(entry.name, f"known: {long_names}")
            hint = hint_for_unknown(entry.name, params, default_hint)
            message = f"unknown option {quote_for_display(entry.name)}"
            raise InputError(Fault(entry.location, message, hint))
        param = params[entry.name]
        try:
            words = [f"{param.opts[0]}={entry.value}"]
            given, _, _ = self.make_parser(ctx).parse_args(args=words)
            param.process_value(ctx, given[param.name])
        except typer.BadParameter as error:
            location = f"{entry.location}: {param.opts[0]}"
            raise InputError(Fault(location, error.message)) from error
        return replace(entry, name=param.opts[0])


_JOB_FILE: Final = "write `workers` in a job file: the command then runs once for each worker"
_CHOOSES_SERVERS: Final = "leave it out: jobs run on any server that has what they request"

_OTHER_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--gpu", "--gres", "--num-gpus", "--entrypoint-num-gpus"), "write --gpus 2"),
    **dict.fromkeys(("-G", "--gpus-per-node", "--gpus-per-task"), "write --gpus 2"),
    **dict.fromkeys(("-c", "--cpu", "--cpus-per-task", "--num-cpus"), "write --cpus 4"),
    **dict.fromkeys(("-N", "-n", "--nodes", "--ntasks", "--ntasks-per-node"), _JOB_FILE),
    **dict.fromkeys(("--nproc_per_node", "--nproc-per-node", "--replicas", "--workers"), _JOB_FILE),
    **dict.fromkeys(("-p", "--partition", "-C", "--constraint", "--nodelist"), _CHOOSES_SERVERS),
    **dict.fromkeys(("-A", "--account", "--namespace", "--queue"), "write --tenant NAME"),
    **dict.fromkeys(("-J", "--job-name", "--submission-id"), "write --name NAME"),
    **dict.fromkeys(("-D", "--chdir", "--working-dir"), "write --workdir DIR"),
    **dict.fromkeys(("--time-limit", "--timeout"), "write --walltime 8h"),
    **dict.fromkeys(("-e", "--error", "--log"), "leave it out, and read `shadowprice logs JOB`"),
    "-a": "submit the script once for each task, with an argument after --",
    "--array": "submit the script once for each task, with an argument after --",
    "-b": "leave it out, and submit at that time",
    "--begin": "leave it out, and submit at that time",
    "-d": "leave it out, and submit when the other job has finished",
    "--dependency": "leave it out, and submit when the other job has finished",
    "--deadline": "write --by 18:00",
    "--exclusive": "request all of a server's GPUs with --gpus",
    "--export": "write --env NAME=VALUE",
    "--image": "write run: {image: NAME} in a job file",
    "--mem": "write --memory 16GiB",
    "--nice": "write --priority low",
    "--qos": "write --priority high",
}
"""Hints for options of sbatch, torchrun and ray."""


def _header(path: Path, text: str) -> Iterator[tuple[str, HeaderOption]]:
    """Yield the options of the header, each with `_OWN` or `_SLURM`, the start of its line.

    The header ends at the first command.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        for key in (_OWN, _SLURM):
            rest = line.removeprefix(key)
            if rest != line and (not rest or rest[0].isspace()):
                yield from ((key, entry) for entry in _options(rest, f"{path}:{number}", key))


def _options(text: str, location: str, key: str) -> Iterator[HeaderOption]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InputError(Fault(location, f"can't be split into words: {error}")) from error
    while words:
        word = words.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
        elif word.startswith("-") and len(word) > 1 and word[1] != "-":
            name, value = word[:2], word[2:]
            equals = value
        else:
            message = f"expected an option, got {quote_for_display(word)}"
            raise InputError(Fault(location, message, f"write for example {key} --time=3h"))
        if not equals and words and not words[0].startswith("-"):
            value, equals = words.pop(0), " "
        if not equals and key == _OWN:  # options of sbatch may have no value
            raise InputError(Fault(f"{location}: {name}", "expected a value", f"write {name}=..."))
        yield HeaderOption(name, value, location)


# ---------------------------------------------------------------- Slurm

_LONG: Final[Mapping[str, str]] = {
    "G": "gpus", "t": "time", "c": "cpus-per-task", "J": "job-name", "D": "chdir", "N": "nodes",
    "n": "ntasks", "a": "array", "b": "begin", "d": "dependency", "H": "hold",
}  # fmt: skip
"""Short options of ``sbatch`` that are understood."""

_SAME: Final[Mapping[str, str]] = {
    "gpus": "--gpus",
    "gpus-per-node": "--gpus",
    "gpus-per-task": "--gpus",
    "cpus-per-task": "--cpus",
    "chdir": "--workdir",
}
"""Options whose value can be used unchanged. A script is a single task on a single node, so numbers
per node or task are numbers of the job."""

_UNDERSTOOD: Final = frozenset({*_SAME, "gres", "time", "mem", "job-name"})
_ONE: Final = frozenset({"nodes", "ntasks", "ntasks-per-node", "tasks-per-node"})
"""Options that must be 1."""

_UNSUPPORTED: Final[Mapping[str, str]] = {
    "array": "submit the script once for each task, with an argument after --",
    "begin": "remove it, and submit the script at that time",
    "dependency": "remove it, and submit the script when the other job has finished",
    "gpus-per-socket": "write --gpus, the GPUs of the whole job",
    "hold": "remove it, and submit the script when it may run",
    "mem-per-gpu": "write --mem, the memory of the whole job",
    "ntasks-per-gpu": "write --gpus, and start the tasks in the script",
    "tres-per-job": "write --gpus and --cpus-per-task",
    "tres-per-task": "write --gpus and --cpus-per-task",
}
"""Hints for options that can't be ignored, because the job would do something else."""

_NO_LIMIT: Final = frozenset({"unlimited", "infinite"})
_MEMORY: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_SOCKETS: Final = re.compile(r"\([^)]*\)")
_IS_GPU: Final = re.compile(r"(?:gres[/:])?gpu(?![\w-])")
_GPU: Final = re.compile(
    r"(?:gres[/:])?gpu(?::(?P<kind>(?!\d+(?:$|[:=]))\w[\w.-]*))?(?:[:=](?P<count>\d+))?"
)
"""GPUs of ``--gres``; a kind may begin with a digit, such as ``1g.5gb``."""

_NO_VARIABLES: Final = frozenset({"ALL", "NONE", "NIL", ""})
"""Values of ``--export`` without a variable. A job gets `plain_job.PASSED_VARIABLES` anyway."""


def _slurm_options(entries: Iterable[HeaderOption], ignored: list[str]) -> Iterator[HeaderOption]:
    """Yield the options of ``submit`` for ``#SBATCH`` options; add others to ``ignored``."""
    named = [
        (_LONG.get(entry.name[1:], "") if len(entry.name) == 2 else entry.name[2:], entry)
        for entry in entries
    ]
    values = {name: entry.value for name, entry in named}
    cpus, gpus = values.get("cpus-per-task", ""), _gpu_count(named)
    for option, entry in named:
        translated = None
        if option == "export":
            variables, others = _exported(entry.value)
            yield from (HeaderOption("--env", text, entry.location) for text in variables)
            if others:
                ignored.append(f"{entry.name}={','.join(others)}")
            continue
        if option in _UNSUPPORTED:
            location = f"{entry.location}: --{option}"
            raise InputError(Fault(location, "is not supported", _UNSUPPORTED[option]))
        if option in _ONE:
            # A range such as 1-4 begins with the minimum.
            if entry.value.partition("-")[0].lstrip("0") != "1":
                shown = quote_for_display(entry.value)
                message = f"expected 1, got {shown}: a script is one process"
                hint = "write 1, or state `workers` in a job file"
                raise InputError(Fault(f"{entry.location}: --{option}", message, hint))
            continue
        if option == "mem-per-cpu":
            translated = _memory_of_cpus(entry, cpus)
        elif option == "cpus-per-gpu":
            translated = _cpus_of_gpus(entry, gpus)
        elif option in _UNDERSTOOD:
            translated = _translate(option, entry.value, entry.location)
        if translated is None:
            ignored.append(entry.name)
        else:
            yield HeaderOption(*translated, entry.location)


def _exported(value: str) -> tuple[list[str], list[str]]:
    """Return the values of ``--env`` for a value of ``--export``, and its other parts."""
    parts = [part.strip() for part in value.split(",")]
    others = [part for part in parts if part in _NO_VARIABLES]
    named = [part for part in parts if part not in _NO_VARIABLES]
    # Like sbatch, skip variables that the submitter doesn't have.
    return [part for part in named if "=" in part or part in os.environ], others


def _gpu_count(named: Iterable[tuple[str, HeaderOption]]) -> int | None:
    """Return the number of GPUs that options request; None if it's unknown."""
    count: int | None = None
    for option, entry in named:
        if option != "gres" and _SAME.get(option) != "--gpus":
            continue
        translated = _translate(option, entry.value, entry.location)
        number = "0" if translated is None else translated[1].rpartition(":")[2]
        count = int(number) if number.isdecimal() and len(number) < 10 else None
    return count


def _cpus_of_gpus(entry: HeaderOption, gpus: int | None) -> tuple[str, str] | None:
    """Return ``--cpus`` for ``--cpus-per-gpu``; None for 0 cores."""
    if gpus is None or not entry.value.isdecimal() or len(entry.value) > bounds.QUANTITY.maximum:
        location = f"{entry.location}: --cpus-per-gpu"
        raise InputError(Fault(location, "needs the number of GPUs", "write --cpus-per-task"))
    cores = gpus * int(entry.value)
    return ("--cpus", str(cores)) if cores else None


def _memory_of_cpus(entry: HeaderOption, cpus: str) -> tuple[str, str] | None:
    """Return ``--memory`` for ``--mem-per-cpu`` and the value of ``--cpus-per-task``."""
    if not cpus.isdecimal() or len(cpus) > bounds.QUANTITY.maximum:
        location = f"{entry.location}: --mem-per-cpu"
        hint = "give --cpus-per-task, or write --mem"
        raise InputError(Fault(location, "needs the number of cores", hint))
    amount, unit = _memory("mem-per-cpu", entry.value, entry.location)
    return ("--memory", f"{amount * int(cpus)}{unit}iB") if amount else None


def _memory(option: str, value: str, location: str) -> tuple[int, str]:
    """Parse a size such as 16G into a number and its unit's letter; Slurm's default is M."""
    match = _MEMORY.fullmatch(value) if len(value) <= bounds.QUANTITY.maximum else None
    if match is None:
        raise _invalid(option, value, location, "16G")
    return int(match[1]), (match[2] or "M").upper()


def _translate(option: str, value: str, location: str) -> tuple[str, str] | None:
    """Return name and value of the option of ``submit``; None if it would have no effect."""
    if option == "gres":
        parts = [part for part in _SOCKETS.sub("", value).split(",") if _IS_GPU.match(part)]
        if not parts:
            return None
        match = _GPU.fullmatch(parts[0])
        if match is None or len(parts) > 1:  # several kinds
            raise _invalid(option, value, location, "gpu:2, or gpu:a100:2 for a kind")
        if match["count"] and not match["count"].strip("0"):
            return None
        kind = "" if match["kind"] is None else f"{match['kind']}:"
        return "--gpus", f"{kind}{match['count'] or 1}"
    if option == "time":
        if value.lower() in _NO_LIMIT:
            return None
        total = plain_job.parse_slurm_seconds(value)
        if total is None:
            raise _invalid(option, value, location, "3:00:00, or minutes")
        # Slurm's time is a limit, at which the job is ended.
        return ("--walltime", f"{total}s") if total else None  # 0: no limit
    if option == "mem":
        amount, unit = _memory(option, value, location)
        return ("--memory", f"{amount}{unit}iB") if amount else None  # 0: the whole node
    if not value:
        raise _invalid(option, value, location, "a value")
    if option == "job-name":  # names of jobs are unique here
        return "--name", plain_job.generate_name(value)
    return _SAME[option], value


def _invalid(option: str, value: str, location: str, example: str) -> InputError:
    message = f"--{option}: unexpected value {quote_for_display(value)}"
    return InputError(Fault(location, message, f"write {example}"))
