"""Limits of all inputs in one table, checked before memory of that size is allocated.

Each limit is far above practical needs and far below the memory of a machine. ``docs/formats.md``
lists the table, and a test keeps both equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from shadowprice.core.errors import Fault, InputError

Number = TypeVar("Number", int, float)

LIMITS_BY_NAME: Final[dict[str, InputLimit]] = {}
"""All limits by name, in the order of the documentation."""


@dataclass(frozen=True, slots=True)
class InputLimit:
    """The maximum of one quantity; in messages, ``what`` follows the number and names its unit."""

    name: str
    maximum: int | float
    what: str

    def checked(self, value: Number) -> Number:
        """Return the value; raise InputError with the limit's name if it exceeds the maximum."""
        if not value <= self.maximum:  # NaN fails every comparison
            raise InputError(self.message(value))
        return value

    def check(self, value: float, location: str, hint: str = "") -> None:
        """Raise InputError with a location if the value exceeds the maximum."""
        if not value <= self.maximum:
            raise InputError(Fault(location, self.message(value), hint))

    def message(self, value: float) -> str:
        """Return the error message for a value above the maximum."""
        if value != value:  # noqa: PLR0124  # NaN
            return "is not a number"
        return f"{_format_value(value)} {self.broken}"

    @property
    def broken(self) -> str:
        """Part of the error message that doesn't depend on the value."""
        return f"exceeds the limit of {_format_value(self.maximum)} {self.what}"


def _bound(name: str, maximum: float, what: str) -> InputLimit:
    bound = InputLimit(name, maximum, what)
    LIMITS_BY_NAME[name] = bound
    return bound


def _format_value(value: float) -> str:
    if isinstance(value, int):
        if abs(value) < 10**18:
            return f"{value:,}"
        if value.bit_length() > 1000:  # beyond floats
            return "a number of hundreds of digits"
    return f"{float(value):.6g}"


# Files
DOCUMENT = _bound("document", 16 << 20, "bytes of a YAML file, decompressed")
PARAMETERS = _bound("parameters", 1 << 20, "bytes of a parameter file")
LINE = _bound("line", 1 << 20, "bytes of a line")
LINES = _bound("lines", 20_000_000, "lines of a file")
JOURNAL_LINE = _bound("journal_line", 1 << 27, "bytes of a line of a journal")
TABLE_BYTES = _bound("table", 4 << 30, "bytes of a trace or a job file, decompressed")
EXPANSION = _bound("expansion", 200, "times its size that a packed file over 64 MiB unpacks to")
VALUES = _bound("values", 250_000, "values of a YAML file, counted at every alias")
BODY_VALUES = _bound("body_values", 500_000, "values of a request body")
ENTRIES = _bound("entries", 10_000, "entries of a list or mapping in a request body")
NESTING = _bound("nesting", 50, "levels of nesting")
FAULTS = _bound("faults", 50, "faults listed")
NAME = _bound("name", 200, "characters of a name")
PATH = _bound("path", 4_000, "characters of a path")
TEXT = _bound("text", 2_000, "characters of any other text in a file")
QUANTITY = _bound("quantity", 60, "characters of a quantity")
NUMBER = _bound("number", 10**12, "(any other number)")

# Time
SECONDS = _bound("seconds", 5_000_000_000, "seconds (150 years)")
SLOT = _bound("slot", 1_000_000_000_000, "(the last slot)")
SIMULATED = _bound("simulated", 5_000_000, "slots simulated (skipped ones not counted)")
HORIZON = _bound("horizon", 100_000, "slots of a horizon")

# Clusters
SERVERS = _bound("servers", 200_000, "servers")
RESOURCES = _bound("resources", 64, "resources")
TENANTS = _bound("tenants", 10_000, "tenants")
POINTS = _bound("points", 100_000_000, "points of a budget")
PERIOD = _bound("period", 3_660 * 86_400, "seconds of a budget's period (ten years)")
PLAN_CELLS = _bound(
    "cells", 1 << 27, "cells of a plan (servers x resources x slots of the horizon)"
)

# Jobs
JOBS = _bound("jobs", 1_000_000, "jobs of a job file, a trace or a preset")
CHUNKS = _bound("chunks", 1_000_000_000, "chunks")
WORKER_COUNTS = _bound("widths", 10_000, "numbers of workers that a job may run with")
FAMILIES = _bound("families", 10_000, "families of a library")
CHOICES = _bound("choices", 1 << 24, "choices of a job (numbers of workers x slots of the horizon)")
JOB_SLOTS = _bound("length", 5_000_000, "slots that a job runs with its fastest worker count")
PROGRESS = _bound(
    "progress", 2**60, "units of progress (worker-slots, or millionths of a mini-batch)"
)
TASKS = _bound("tasks", 100_000, "tasks of a job")
LABELS = _bound("labels", 100, "labels of a job")
ARGUMENTS = _bound("arguments", 1_000, "words of a command")
SCRIPT = _bound("script", 65_536, "bytes of a batch script")
VARIABLES = _bound("variables", 200, "environment variables of a job")
POD_PARTS = _bound("pod_parts", 100, "tolerations, volumes, labels or annotations of a pod")
USER_ID = _bound("user_id", 2**31 - 1, "(the largest ID of a user or a group)")
RETRIES = _bound("retries", 1_000, "failures that a job is allowed")
GRACE = _bound("grace", 86_400, "seconds of a grace period")
INCIDENTS = _bound("incidents", 1_000_000, "incidents")

SHAPE = _bound("shape", 1_000, "(the largest shape of a distribution)")
SIGMA = _bound("sigma", 10, "(the largest sigma of a log-normal distribution)")
PHASES = _bound("phases", 100, "phases of a hyper-exponential distribution")
EXPONENT = _bound("exponent", 100, "(the largest exponent of a utility)")

GPUS = _bound("gpus", 1_000_000, "GPUs or cores of a job of a trace")
MEMORY = _bound("memory", 2**52, "bytes of memory of a job of a trace")
MEASURED = _bound("measured", 1_000_000, "measured durations of a distribution")

# Results
RUN_FILE = _bound("run_file", 256 << 20, "bytes of run.json")
ADVICE_JOBS = _bound("advised", 1_000, "refused jobs that a run keeps advice on")
ROWS = _bound("rows", 20_000_000, "rows of allocations (one per slot, job and server)")

# Options
SEED = _bound("seed", 2**63 - 1, "(the largest seed)")
SEEDS = _bound("seeds", 1_000, "seeds of a comparison")
TRIALS = _bound("trials", 1_000_000, "trials")
DRAWS = _bound("draws", 1_000_000_000, "durations drawn (trials x copies of tasks)")
MISREPORTS = _bound("misreports", 100_000, "misreports tried for a tenant")
ARRIVALS = _bound("arrivals", 1_000_000, "jobs that arrive in a simulation of waves")
WAVE_TASKS = _bound(
    "wave_tasks", 20_000_000, "tasks (jobs x tasks x copies) of a simulation of waves"
)
MACHINES = _bound("machines", 1_000_000, "machines of a cloning file")
COPIES = _bound("copies", 1_000, "copies of a task")
OFFERED_LOAD = _bound("load", 1_000, "times the work that fits")
POLICIES = _bound("policies", 50, "policies compared")
SETTINGS = _bound("settings", 1_000, "parameters set (by options, a file, or a variant)")
