"""``shadowprice profile``: measure a command's speed by worker count; write a job file."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shadowprice.cli import console
from shadowprice.cli import options as o
from shadowprice.cli.console import Output
from shadowprice.cli.options import expand_options
from shadowprice.core import amounts
from shadowprice.core.amounts import Dimension
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.wording import quote_for_display
from shadowprice.results.output_paths import check_output_file, write_atomically

if TYPE_CHECKING:
    from shadowprice.inputs.families import Families
    from shadowprice.profiling.findings import Findings
    from shadowprice.profiling.fit import StepTime

MAX_PROCESSES = 1_000  # maximum number of workers, or of parameter servers, on one machine
_GUESSED_STEPS = 10_000  # length of the training in a job file if --minibatches isn't given
ProgressCallback = Callable[[int, str, float, "StepTime | None"], None]


@dataclass(frozen=True)
class MeasurementOptions:
    """Options that define what is measured, and for how long."""

    workers: Annotated[
        str, o.workload_option(help="Comma-separated worker counts to measure, in this order.")
    ] = "1,2,4"
    ps: Annotated[
        str, o.workload_option(help="Comma-separated counts of parameter servers to measure.")
    ] = "0"
    cpu: Annotated[
        int, o.workload_option(min=0, max=1024, help="CPU cores per worker; 0: all cores.")
    ] = 1
    gpu: Annotated[int, o.workload_option(min=0, max=64, help="GPUs per worker.")] = 0
    env: Annotated[
        list[str] | None,
        o.workload_option(
            metavar="NAME=VALUE", help="Environment variable of the command; repeatable."
        ),
    ] = None
    grace: Annotated[
        str, o.workload_option(help="Grace period of the command after SIGTERM, such as 30s.")
    ] = "30s"
    time: Annotated[str, o.execution_option(help="Time limit per worker count, such as 1min.")] = (
        "1min"
    )
    steps: Annotated[
        int | None,
        o.execution_option(min=1, help="Number of mini-batches after which a measurement stops."),
    ] = None
    precision: Annotated[
        float,
        o.execution_option(
            min=1e-4,
            max=0.5,
            help="Precision at which a measurement stops: half of the 95 % interval, as a "
            "share of the step time.",
        ),
    ] = 0.02


@dataclass(frozen=True)
class FileOptions:
    """Options of the files that are written."""

    name: Annotated[str, o.output_option(help="Name of the job in the job file.")] = "profiled"
    minibatches: Annotated[
        int | None,
        o.output_option(min=1, help="Mini-batches of the whole training: `steps` of the job file."),
    ] = None
    out: Annotated[Path | None, o.output_option(metavar="FILE", help="Job file to write.")] = None
    family: Annotated[
        str | None, o.output_option(help="Family to save the measured curve for.")
    ] = None
    families: Annotated[
        Path, o.output_option(metavar="FILE", help="YAML file with the curves of families.")
    ] = Path("families.yaml")

    def library(self) -> Families | None:
        """Check the file of --families; return its families, or None without --family."""
        from shadowprice.inputs.families import parse_families, read_families

        if self.family is None:
            return None
        if self.out is not None and self.out.resolve() == self.families.resolve():
            message = f"{self.out} is also the file of --families"
            raise InputError(Fault("--out", message, "give another name"))
        check_output_file(self.families, lambda _: True)  # the content is validated below
        # Fail before the measurement if the name is invalid.
        try:
            parse_families({"families": {self.family: {"throughput": {1: 1.0}}}}, "--family")
        except InputError as error:
            raise InputError(
                [Fault("--family", fault.message, fault.hint) for fault in error.faults]
            ) from error
        return read_families(self.families) if self.families.exists() else {}

    def write(self, findings: Findings, library: Families | None) -> None:
        """Write the job file and the curve of the family, if they were requested."""
        from shadowprice.profiling.findings import families_file, job_file

        today = datetime.now(UTC).date().isoformat()
        if self.out is not None:
            minibatches = self.minibatches or _GUESSED_STEPS
            content = job_file(findings, self.name, minibatches, today, bool(self.minibatches))
            write_atomically(self.out, content)
        if self.family is not None and library is not None:
            write_atomically(self.families, families_file(findings, self.family, library, today))


@expand_options()
def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Command of every worker.")
    ],
    options: MeasurementOptions,
    files: FileOptions,
    output: Annotated[
        Output,
        o.output_option("--output", "-o", help="Output format.", callback=console.reserve_stdout),
    ] = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Measure a command's training speed by worker count, and write a job file.

    The command runs on this machine as under the local executor, once per worker count, until the
    step time is precise enough or the time limit is reached. It must report its progress
    (shadowprice.jobs.report) and exit on SIGTERM.

    [bold]Example[/bold]
        shadowprice profile --workers 1,2,4 --out jobs.yaml -- python train.py
    """
    from shadowprice.executors.local.machine import physical_devices
    from shadowprice.profiling.findings import HEAD, Findings
    from shadowprice.profiling.running import Command, MeasurementLimits, measure_all

    if not sys.platform.startswith("linux"):
        raise InputError("profile needs Linux, as the local executor does")
    counts = [
        (workers, ps)
        for ps in _numbers("--ps", options.ps, 0)
        for workers in _numbers("--workers", options.workers, 1)
    ]
    if files.out is not None:
        check_output_file(files.out, lambda head: head.startswith(HEAD))
    library = files.library()
    seconds = float(amounts.parse_positive_duration(options.time, "--time", "1min"))
    limits = MeasurementLimits(seconds, options.precision, steps=options.steps)
    measured_command = Command(
        tuple(command), str(Path.cwd()), _environment(options.env or []), options.cpu, options.gpu,
        float(amounts.parse_positive_duration(options.grace, "--grace", "30s")),
    )  # fmt: skip
    _check_command(measured_command.words)
    if not options.gpu and physical_devices():
        console.print_note(
            "note: this machine has GPUs, but --gpu assigns none: workers that use GPUs share all "
            "of them"
        )
    with (
        tempfile.TemporaryDirectory(prefix="shadowprice-profile-") as folder,
        _show_progress(counts, quiet or output == "json") as report,
    ):
        points, unmeasured = asyncio.run(
            measure_all(Path(folder), measured_command, counts, limits, report)
        )
    if not points:
        raise _not_measured(unmeasured)
    findings = Findings(points, unmeasured, measured_command)
    files.write(findings, library)
    if output == "json":
        console.print_json(findings.record())
    else:
        _print(findings, files.out)
        if files.family is not None:
            family = quote_for_display(files.family)
            console.print_line(f"the curve of family {family} is in {files.families}")
    if unmeasured:
        raise _not_measured(unmeasured)


def _not_measured(unmeasured: Mapping[tuple[int, int], str]) -> ShadowpriceError:
    """Print the ends of logs; return an error that lists the failed worker counts."""
    for counts, reason in unmeasured.items():
        first, *lines = reason.splitlines()
        if lines:
            console.print_note(f"{_count_text(counts)}: {first}; its log ends:")
        for line in lines:
            console.print_note(line)
    summary = "; ".join(
        f"{_count_text(counts)}: {reason.splitlines()[0]}" for counts, reason in unmeasured.items()
    )
    return ShadowpriceError(f"not measured: {summary}")


def _numbers(option: str, text: str, minimum: int) -> list[int]:
    hint = f"write numbers from {minimum} to {MAX_PROCESSES:,}, each once, such as 1,2,4"
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        fault = Fault(option, f"expected a list of integers, got {quote_for_display(text)}", hint)
        raise InputError(fault)
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers) or not all(
        minimum <= number <= MAX_PROCESSES for number in numbers
    ):
        raise InputError(
            Fault(option, f"{quote_for_display(text)} has a number out of range or repeated", hint)
        )
    return numbers


def _environment(pairs: list[str]) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            fault = Fault("--env", f"{quote_for_display(pair)} has no =", "write NAME=VALUE")
            raise InputError(fault)
        variables[name] = value
    _check_run({"command": ["x"], "env": variables}, "--env")
    return variables


def _check_run(record: Mapping[str, object], location: str) -> None:
    """Validate keys of a job's ``run``; errors have ``location``, the option that set them."""
    from shadowprice.core.specs import validate
    from shadowprice.core.specs.run import RunSpec

    _, faults = validate(RunSpec, record, "")
    if faults:
        raise InputError([Fault(location, fault.message, fault.hint) for fault in faults])


def _check_command(words: tuple[str, ...]) -> None:
    _check_run({"command": list(words)}, "COMMAND")
    if shutil.which(words[0]) is None:
        hint = "write a program that a shell would find, such as: -- python train.py"
        raise InputError(Fault("COMMAND", f"unknown program {quote_for_display(words[0])}", hint))


def _count_text(counts: tuple[int, int]) -> str:
    from shadowprice.profiling.findings import format_counts

    return format_counts(*counts)


@contextmanager
def _show_progress(counts: list[tuple[int, int]], quiet: bool) -> Iterator[ProgressCallback]:
    """Show the measurements: bars on a terminal, one line for each change elsewhere.

    Yields a callback with the arguments of `measure_all`'s ``on_progress``.
    """
    from shadowprice.profiling.findings import round_significant

    def describe(activity: str, step: StepTime | None) -> str:
        if step is None:
            return activity
        speed = round_significant(step.per_second)
        return f"{activity}: {speed:g} mini-batches/s +- {step.error:.1%}"

    screen = console.stderr()
    if quiet:
        yield lambda *_: None
    elif screen.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=screen, transient=True) as bars:
            tasks = [bars.add_task(_count_text(key), total=1.0, start=False) for key in counts]

            def draw(index: int, activity: str, share: float, step: StepTime | None) -> None:
                bars.start_task(tasks[index])
                text = f"{_count_text(counts[index])}: {describe(activity, step)}"
                bars.update(tasks[index], completed=share, description=text)

            yield draw
    else:
        shown: dict[int, str] = {}  # last activity by index in ``counts``

        def write(index: int, activity: str, share: float, step: StepTime | None) -> None:
            del share
            if shown.get(index) != activity:
                shown[index] = activity
                line = describe(activity, step) if activity == "stopping" else activity
                console.print_note(f"{_count_text(counts[index])}: {line}")

        yield write


def _print(findings: Findings, out: Path | None) -> None:
    screen = console.stdout()
    screen.print(_table(findings))
    for remark in findings.remarks():
        console.print_line(f"- {remark}")
    if out is not None:
        console.print_line(f"the job is in {out}")


def _table(findings: Findings) -> Table:
    from shadowprice.profiling.findings import round_significant

    headings = ["workers", *(["servers"] if findings.uses_servers else [])]
    headings += ["mini-batches/s", "+- 95 %", "step", "measured", "memory", "linear model"]
    rows = []
    predicted = dict(zip(findings.curve, findings.linear.quality.predicted, strict=True))
    for point in findings.points:
        size = point.memory.get("worker")
        in_curve = findings.curve[point.workers] is point
        cells = [str(point.workers), *([str(point.ps)] if findings.uses_servers else [])]
        cells += [
            f"{round_significant(point.step.per_second):g}",
            f"{point.step.error:.1%}",
            amounts.format_seconds(point.step.seconds),
            f"{point.step.minibatches:g}",
            "-" if size is None else amounts.format_amount(size >> 20 << 20, Dimension.BYTES),
            f"{round_significant(predicted[point.workers]):g}" if in_curve else "",
        ]
        rows.append(cells)
    return console.make_table(headings, rows, left=())
