"""How many examples properties are tried with."""

from __future__ import annotations

import os
from typing import Final

ALL: Final = os.environ.get("SHADOWPRICE_TEST_DRAWS", "") == "all"
"""Set by ``make test-properties``: all of them, where ``make test`` has minutes."""

LEAST: Final = 10


def draws(many: int) -> int:
    """Return how many of as many examples are tried: half of them, or all."""
    return many if ALL else max(min(many, LEAST), many // 2)
