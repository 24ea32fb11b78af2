"""Compact formatting of server names and placements, such as ``gpu-[0-3,7]``."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Value = TypeVar("Value", bound=Hashable)


def server_group(server: str) -> str:
    """Return a server's name without its number: ``gpu`` for ``gpu-3``."""
    return re.sub(r"-\d+$", "", server)


def plan_with_server_names(
    rows: Iterable[Sequence[int]], names: Sequence[str]
) -> list[list[object]]:
    """Return (slot, server, workers, ps) rows with server names instead of positions."""
    return [[slot, names[server], workers, ps] for slot, server, workers, ps in rows]


def compress_names(names: Iterable[str]) -> str:
    """Format server names compactly: ``gpu-[0-3,7] net``."""
    return " ".join(compress_name_list(names))


def compress_name_list(names: Iterable[str]) -> list[str]:
    """Return server names with numbers of the same group merged: ``gpu-[0-3,7]``, ``net``."""
    merged, single = merge_numbered_names(names)
    return [*merged, *single]


def merge_numbered_names(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return names with merged numbers, such as ``gpu-[0-3,7]``, and names without a number."""
    numbers: dict[str, set[int]] = {}
    single: list[str] = []
    for name in names:
        match = re.fullmatch(r"(.*)-(0|[1-9]\d*)", name)
        if match:
            numbers.setdefault(match[1], set()).add(int(match[2]))
        else:
            single.append(name)
    return [f"{group}-{_ranges(sorted(members))}" for group, members in numbers.items()], single


def group_equal_placements(
    placements: Iterable[tuple[str, Value]],
) -> list[tuple[list[str], Value]]:
    """Group (server, value) pairs by value, such as worker counts; return (servers, value)."""
    groups: dict[Value, list[str]] = {}
    for name, value in placements:
        groups.setdefault(value, []).append(name)
    return [(names, value) for value, names in groups.items()]


def _ranges(numbers: list[int]) -> str:
    """Format ascending numbers: ``7``, or ``[0-3,7]``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    if len(numbers) == 1:
        return str(numbers[0])
    ranges = (str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"[{','.join(ranges)}]"
