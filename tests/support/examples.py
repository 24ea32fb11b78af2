"""The number of examples that Hypothesis draws for a property."""

from __future__ import annotations

import os
from typing import Final

RUN_ALL: Final = os.environ.get("SHADOWPRICE_TEST_EXAMPLES", "") == "all"
"""Set by ``make test SUITE=properties``. The default suite has to end within minutes."""

MIN_EXAMPLES: Final = 10


def example_count(count: int) -> int:
    """Return `count` in the properties suite, and half of it in the default suite."""
    return count if RUN_ALL else max(min(count, MIN_EXAMPLES), count // 2)
