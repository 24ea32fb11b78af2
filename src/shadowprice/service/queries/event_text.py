"""Text lines for the events of a job's history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from shadowprice.core.amounts import format_seconds
from shadowprice.core.budget import points_text
from shadowprice.core.wording import escape_controls, format_number, join_lines
from shadowprice.executors.progress import LEFT_OUT

DEFAULT_REPROMISE_REASON: Final = "its remaining work fits again"
"""Reason of a restored promise if the policy gives none."""


def format_event(kind: str, data: Mapping[str, Any]) -> str:
    """Return an event of a job's history as a line of text; ``data`` is the event's."""
    reason = data.get("reason")
    message = join_lines(
        str(reason.get("message", "") if isinstance(reason, Mapping) else reason or "")
    )
    text = _decision_text(kind, data, message) or _execution_line(
        kind, data, f": {message}" if message else ""
    )
    return escape_controls(text or _change_text(kind, data, message))


def _round_fractions(value: Any) -> Any:
    """Return a JSON value whose fractions below a million have at most six digits."""
    if isinstance(value, float):
        exact = value.is_integer() or abs(value) >= 1e6
        return value if exact else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _round_fractions(item) for key, item in value.items()}
    return [_round_fractions(item) for item in value] if isinstance(value, list | tuple) else value


def _decision_text(kind: str, data: Mapping[str, Any], reason: str) -> str | None:
    """Return the line of a policy's decision; None for other events."""
    slot = f"slot {data['promise']}" if data.get("promise") is not None else ""
    match kind:
        case "admitted":
            value = (
                f", utility {format_number(data['utility'], 6)} at cost "
                f"{format_number(data['cost'], 6)}"
                if data.get("utility") is not None and data.get("cost") is not None
                else ""
            )
            if data.get("margin"):
                slot += f" ({data['margin']} after the plan)"
            return f"admitted{f', promised by the end of {slot}' if slot else ''}{value}"
        case "standby":
            message = str(data.get("message", ""))
            return message if message.startswith("waits") else f"waits: {message}"
        case "refused" | "given-up":
            return f"{kind}: {reason}"
        case "moved" if data.get("before") is None:
            reason = reason or DEFAULT_REPROMISE_REASON
            return f"has a promise again, by the end of {slot}: {reason}"
        case "moved":
            return f"promise moved from slot {data.get('before')} to {slot}: {reason}"
        case "broken":
            return f"promise for slot {data.get('before')} withdrawn: {reason}"
        case "rescheduled":
            later = "later" if data["seconds"] > 0 else "earlier"
            return f"promise is {abs(data['seconds']):.6g} s {later} on the clock: {data['why']}"
    return None


def _misreport_text(reason: str, suffix: str) -> str:
    if reason.startswith(LEFT_OUT):
        return f"progress reports with invalid parts, {join_lines(reason)}"
    return f"an invalid progress report, which is ignored{suffix}"


def _execution_line(kind: str, data: Mapping[str, Any], suffix: str) -> str | None:
    """Return the line of an event about a generation or the job's end; None for other events."""
    if kind == "finished":
        kept = {True: ", as promised", False: ", later than promised", None: ""}[data["kept"]]
        unreported = "" if data.get("reported", True) else "; its progress was counted by time"
        utility = data["utility"]
        earned = "" if utility is None else f"; earned {format_number(utility, 6)}"
        return f"finished{kept}{earned}{unreported}"
    if "generation" not in data:
        return None
    generation = f"generation {data['generation']}"
    match kind:
        case "started" | "resized":
            placement = ", ".join(
                f"{server} ({workers}+{ps})" for server, workers, ps in data["placement"]
            )
            return f"{kind} as {generation} on {placement}"
        case "running":
            return f"{generation} runs"
        case "stopped":
            return f"{generation} stopped from slot {data['slot']} on"
        case "retrying":
            return f"{generation} failed and is retried{suffix}"
        case "failed":
            return f"failed with {generation}{suffix}"
        case "misreported":
            return f"{generation} sends {_misreport_text(data['reason'], suffix)}"
        case "repeated":
            count = f"{data['steps']:.6g}"
            steps = f"{count} mini-batch{' is' if count == '1' else 'es are'} repeated"
            detail = "the others were saved" if data["saved"] else "nothing was saved"
            return f"{generation} starts behind the reported progress: {steps}, {detail}"
        case "foreign":
            return f"{generation} doesn't belong to this job{suffix}"
        case "lost":
            return f"{generation} was lost; the job is not to blame{suffix}"
        case "start-failed":
            return f"{generation} could not be started{suffix}"
        case "ended":
            code = "" if data["code"] is None else f" with status {data['code']}"
            return f"{generation} ended{code}{suffix}"
    return None


def _change_text(kind: str, data: Mapping[str, Any], reason: str) -> str:
    """Return the line of a payment, a revision, a measurement or any other event."""
    match kind:
        case "debited" | "refunded":
            what = "paid" if kind == "debited" else "refunded"
            return f"{points_text(data['points'])} points {what}, {points_text(data['held'])} left"
        case "timespan" if "until" not in data:
            return reason
        case "overrun":
            return reason
        case "partly-ended":
            return f"generation {data['generation']} has partly ended: {reason}"
        case "obstructed":
            on = f" on {', '.join(data['servers'])}" if data["servers"] else ""
            return f"generation {data['generation']}{on} can't be started or ended now: {reason}"
        case "revised":
            return f"revised: {', '.join(data['changes'])}"
        case "outlasted":
            source = "no similar job ran longer"
            if data["jobs"]:
                jobs = "1 similar job" if data["jobs"] == 1 else f"{data['jobs']} similar jobs"
                source = f"by {jobs} that ran longer"
            length = format_seconds(data["seconds"])
            return f"runs longer than predicted: planned as {length} from now on, {source}"
        case "remeasured" if "restart" in data:
            return f"measured: a move costs {data['restart']:.3g} s; planned by that from now on"
        case "remeasured" if "workers" in data:
            workers = "1 worker" if data["workers"] == 1 else f"{data['workers']} workers"
            return (
                f"measured with {workers}: {data['factor']:.3g} times the expected speed; "
                "planned by that from now on"
            )
    other_data = {key: value for key, value in data.items() if key != "reason"}
    details = f" {json.dumps(_round_fractions(other_data))}" if other_data else ""
    return f"{kind}{details}{f': {reason}' if reason else ''}"
