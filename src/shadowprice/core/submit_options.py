"""Keys of a job's record, and the options of ``shadowprice submit`` that set them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

_OPTIONS: Final[Mapping[str, str]] = {
    "name": "--name",
    "tenant": "--tenant",
    "steps": "--steps",
    "minibatch_time": "--time",
    "walltime": "--walltime",
    "by": "--by",
    "priority": "--priority",
    "worker.gpu": "--gpus",
    "worker.cpu": "--cpus",
    "worker.memory": "--memory",
    "run.command": "COMMAND",
    "run.workdir": "--workdir",
    "run.upload": "--upload",
    "run.env": "--env",
    "run.retries": "--retries",
    "run.user": "--user",
}
"""Option by key; the command itself is an argument."""

_SEPARATORS: Final = "./["  # between a key and the rest of a path: a kind of GPU, a variable


def has_options(record: Mapping[str, Any]) -> bool:
    """Return whether a job's keys were set by options of ``submit``."""
    run = record.get("run")
    return isinstance(run, Mapping) and run.get("from_options") is True


def states_no_length(record: Mapping[str, Any]) -> bool:
    """Return whether a job's length is predicted; see `JobSpec.has_unknown_length`."""
    return all(record.get(key) is None for key in ("minibatch_time", "throughput", "tasks"))


def option_for_key(key: str) -> str | None:
    """Return the option that sets a key, such as ``--gpus`` for ``worker.gpu/a100``."""
    for name, option in _OPTIONS.items():
        if key == name or (key.startswith(name) and key[len(name)] in _SEPARATORS):
            return option
    return None


def gpus_text(key: str, count: str) -> str:
    """Return the value of ``--gpus`` for a key of ``worker``, such as ``a100:2``."""
    kind = key.partition("/")[2]
    return f"{kind}:{count}" if kind else count


def run_time_text(seconds: Fraction) -> str:
    """Return the value of ``--time`` for a run time, in its largest unit without a fraction."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{float(seconds):.9g}s"


def minibatch_time(run_time: str, seconds: Fraction, steps: int) -> str:
    """Return the time of one of ``steps`` mini-batches, for a run time of ``seconds``."""
    return run_time if steps == 1 else f"{float(seconds / steps):.9g}s"
