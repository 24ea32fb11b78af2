"""The undo log of an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Undo:
    """Inverse operations of one event's changes, run in reverse order by a rollback.

    Removing and restoring a dictionary's entry moves the entry to the end. If the order matters, it
    is restored after all other changes: by a sort key, or from a copy of a small dictionary.
    """

    __slots__ = ("_kept", "_orders", "_steps")

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._orders: dict[int, tuple[dict[str, Any], Callable[[str], Any]]] = {}
        self._kept: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def clear(self) -> None:
        """Discard the log, because the event took effect."""
        self._steps.clear()
        self._orders.clear()
        self._kept.clear()

    def push(self, opposite: Callable[..., object], *arguments: Any) -> None:
        """Record the inverse of a change."""
        self._steps.append((opposite, arguments))

    def assign(self, owner: object, name: str, value: object) -> None:
        """Set an attribute and record its previous value."""
        self._steps.append((setattr, (owner, name, getattr(owner, name))))
        setattr(owner, name, value)

    def put(self, mapping: dict[Any, Any], key: Any, value: object) -> None:
        """Set an entry and record its previous value."""
        if key in mapping:
            self._steps.append((mapping.__setitem__, (key, mapping[key])))
        else:
            self._steps.append((mapping.pop, (key, None)))
        mapping[key] = value

    def drop(
        self, mapping: dict[Any, Any], key: Any, order: Callable[[str], Any] | None = None
    ) -> Any:
        """Remove an existing entry; ``order`` is the sort key that restores the entries' order."""
        value = mapping.pop(key)
        self._steps.append((mapping.__setitem__, (key, value)))
        if order is not None:
            self._orders[id(mapping)] = (mapping, order)
        return value

    def keep(self, mapping: dict[Any, Any]) -> None:
        """Save a copy of a small mapping, once per event; afterwards it can change freely."""
        if id(mapping) not in self._kept:
            self._kept.add(id(mapping))
            self._steps.append((_replace_entries, (mapping, dict(mapping))))

    def rollback(self) -> None:
        """Undo all changes, the last change first."""
        for opposite, arguments in reversed(self._steps):
            opposite(*arguments)
        for mapping, order in self._orders.values():
            entries = sorted(mapping.items(), key=lambda entry: order(entry[0]))
            _replace_entries(mapping, dict(entries))
        self.clear()


def _replace_entries(mapping: dict[Any, Any], entries: dict[Any, Any]) -> None:
    mapping.clear()
    mapping.update(entries)
