"""Progress reports of jobs, in one format for POST and for files.

``{"generation": 3, "minibatches": 1250, "metrics": {"loss": 0.31}, "checkpoints": true}``:
``minibatches`` counts from the start of the job's first generation. ``checkpoints`` is true if the
job resumes from a checkpoint after a stop. The engine ignores a report that decreases progress or
belongs to an old generation (`core.events.ProgressMeasured`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import (
    escape_controls,
    hint_for_unknown,
    quote_for_display,
    text_problem,
)
from shadowprice.executors.contract import Progressed

_FIELDS = ("generation", "minibatches", "metrics", "checkpoints")
_MICRO = 1_000_000  # units of `Progressed.progress` per mini-batch
_MAX_FAULTS = 50
_MAX_ERROR_CHARS = 500

LEFT_OUT = "left out: "  # prefix of the error of a report that is used without its invalid parts


def decode_report(content: bytes | str) -> object:
    """Decode the JSON of a progress report, also with invalid UTF-8 or a huge integer in it."""
    if isinstance(content, bytes):
        content = content.decode(json.detect_encoding(content), "replace")
    return json.loads(content, parse_int=_parse_integer)


def _parse_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # thousands of digits
        return math.inf


def read_progress(job: str, body: object, at: float) -> tuple[Progressed, tuple[Fault, ...]]:
    """Parse a progress report that arrived at ``at``; return it and the problems of omitted parts.

    Invalid optional parts, such as a metric, are left out, so that the progress still counts.
    Raises InputError if the generation or the mini-batches are invalid.
    """
    if not isinstance(body, Mapping):
        raise InputError(
            Fault("progress", "it is not a JSON object", 'write {"minibatches": 1250}')
        )
    omitted = [
        Fault(
            f"progress.{quote_for_display(name)}", "unknown field", hint_for_unknown(name, _FIELDS)
        )
        for name in islice(body, _MAX_FAULTS)
        if name not in _FIELDS
    ]
    faults: list[Fault] = []
    generation = body.get("generation")
    if isinstance(generation, bool) or not isinstance(generation, int) or generation < 1:
        hint = "write the value of SHADOWPRICE_GENERATION"
        faults.append(Fault("progress.generation", "it is not an integer of at least 1", hint))
    done = _number(body.get("minibatches"))
    if done is None or not 0 <= done * _MICRO <= bounds.PROGRESS.maximum:
        hint = "write the number of mini-batches since the job's beginning"
        faults.append(Fault("progress.minibatches", "it is not a count", hint))
    metrics, invalid_metrics = _read_metrics(body.get("metrics", {}))
    omitted += invalid_metrics
    checkpoints = body.get("checkpoints", False)
    if not isinstance(checkpoints, bool):
        checkpoints_hint = "write true if the job continues from checkpoints, otherwise false"
        omitted.append(Fault("progress.checkpoints", "expected true or false", checkpoints_hint))
        checkpoints = False
    if faults:
        raise InputError([*omitted, *faults][:_MAX_FAULTS])
    assert isinstance(generation, int)
    assert done is not None
    report = Progressed(job, generation, round(done * _MICRO), metrics, at, checkpoints)
    return report, tuple(omitted[:_MAX_FAULTS])


def _read_metrics(metrics: object) -> tuple[dict[str, float], list[Fault]]:
    faults: list[Fault] = []
    if not isinstance(metrics, Mapping) or len(metrics) > bounds.LABELS.maximum:
        hint = f"write at most {bounds.LABELS.maximum} names with numbers"
        return {}, [Fault("progress.metrics", "it is not a mapping from names to numbers", hint)]
    valid_metrics: dict[str, float] = {}
    for name, value in metrics.items():
        number = _number(value)
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= bounds.NAME.maximum
            or text_problem(name)
        ):
            faults.append(
                Fault("progress.metrics", f"{quote_for_display(name)} is not a valid metric name")
            )
        elif number is None and not isinstance(value, float):
            faults.append(
                Fault(
                    f"progress.metrics.{quote_for_display(name)}",
                    f"{quote_for_display(value)} is not a number",
                )
            )
        elif number is not None:  # a NaN loss is valid, but can't be charted
            valid_metrics[name] = number
    return valid_metrics, faults


def describe_omitted(omitted: Sequence[Fault]) -> str:
    """Return the error of a report that is used without the omitted parts."""
    return f"{LEFT_OUT}{InputError(omitted)}"


def same_kind(reason: str, reasons: Iterable[str]) -> list[str]:
    """Return the errors of the same kind as ``reason``: of partly used, or of unused reports."""
    return [other for other in reasons if other.startswith(LEFT_OUT) == reason.startswith(LEFT_OUT)]


def format_report_error(error: str) -> str:
    """Return a malformed report's error for the job history: on one line, of bounded length."""
    return escape_controls(error)[:_MAX_ERROR_CHARS]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer above the maximum float
        return None
    return number if math.isfinite(number) else None
