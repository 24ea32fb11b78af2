"""Events and commands of an engine, for comparisons."""

from __future__ import annotations

from typing import Any

from shadowprice.core.events import DriverEvent, SlotBegan, SlotEnded


def describe_commands(commands: Any) -> list[str]:
    """Return commands as text, with their numbers and generations."""
    words = []
    for command in commands:
        text = repr(command)
        decision: Any = getattr(command, "decision", None)
        if hasattr(decision, "schedule"):
            text = repr((decision.schedule.rows(), decision.payoff, decision.cost, decision.copies))
        words.append(text)
    return words


def external_events(events: list[DriverEvent]) -> list[DriverEvent]:
    """Return the external events: jobs, cancellations, servers."""
    return [event for event in events if not isinstance(event, SlotBegan | SlotEnded)]
