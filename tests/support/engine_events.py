"""Events and commands of an engine, for comparisons."""

from __future__ import annotations

from typing import Any

from shadowprice.core.events import DriverEvent, SlotBegan, SlotEnded


def told(commands: Any) -> list[str]:
    """Return commands in words, numbers and generations included."""
    words = []
    for command in commands:
        text = repr(command)
        decision = getattr(command, "decision", None)
        if hasattr(decision, "schedule"):
            text = repr((decision.schedule.rows(), decision.payoff, decision.cost, decision.copies))
        words.append(text)
    return words


def outside(events: list[DriverEvent]) -> list[DriverEvent]:
    """Return what came from outside: jobs, cancellations, servers."""
    return [event for event in events if not isinstance(event, SlotBegan | SlotEnded)]
