"""The number of random examples of a property."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

RUN_ALL: Final = os.environ.get("SHADOWPRICE_TEST_EXAMPLES", "") == "all"
"""Set by ``make test SUITE=properties``. The default suite has to end within minutes."""

MIN_EXAMPLES: Final = 5
DEFAULT_PART: Final = 6  # part of the examples in the default suite

T = TypeVar("T")


def example_count(count: int) -> int:
    """Return `count` in the properties suite, and a sixth of it in the default suite."""
    return count if RUN_ALL else max(min(count, MIN_EXAMPLES), count // DEFAULT_PART)


def sample(seeds: Sequence[T]) -> Sequence[T]:
    """Return all `seeds` in the properties suite, and the first sixth in the default suite."""
    return seeds if RUN_ALL else seeds[: -(-len(seeds) // DEFAULT_PART)]
