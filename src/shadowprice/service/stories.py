"""What happened to a job, as lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shadowprice.core.wording import escaped


def told_line(entry: Mapping[str, Any]) -> str:
    """Return an entry of a job's story as a line for people."""
    data = entry["data"]
    slot = f"slot {data['promise']}" if data.get("promise") is not None else ""
    reason = data.get("reason")
    why = reason.get("message", "") if isinstance(reason, Mapping) else str(reason or "")
    match entry["kind"]:
        case "admitted":
            worth = (
                f", worth {data['utility']:.6g} for {data['cost']:.6g}"
                if data.get("utility") is not None and data.get("cost") is not None
                else ""
            )
            text = f"admitted{f', promised by the end of {slot}' if slot else ''}{worth}"
        case "standby":
            text = f"waits: {data.get('message', '')}"
        case "refused" | "given-up":
            text = f"{entry['kind']}: {why}"
        case "moved":
            text = f"promise moved from slot {data.get('before')} to {slot}: {why}"
        case "broken":
            text = f"promise for slot {data.get('before')} taken back: {why}"
        case "started" | "resized":
            on = ", ".join(
                f"{server} ({workers}+{ps})" for server, workers, ps in data["placement"]
            )
            text = f"{entry['kind']} as generation {data['generation']} on {on}"
        case "finished":
            kept = {True: ", as promised", False: ", later than promised", None: ""}[data["kept"]]
            text = f"finished{kept}; earned {data['utility']:.6g}"
        case "debited" | "refunded" as kind:
            what = "paid" if kind == "debited" else "given back"
            text = f"{data['points']:.6g} points {what}, {data['held']:.6g} left"
        case "remeasured" if "workers" in data:
            text = (
                f"measured with {data['workers']} workers: {data['factor']:.3g} times as fast as "
                "was believed; planned by that from now on"
            )
        case kind:
            rest = {key: value for key, value in data.items() if key != "reason"}
            more = f" {json.dumps(rest)}" if rest else ""
            text = f"{kind}{more}{f': {why}' if why else ''}"
    return escaped(text)
