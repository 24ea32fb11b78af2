"""Inputs of decisions besides reservations, and bounds on the differences of prices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from shadowprice.policies.pricing.constants import PriceConstants

REFUSAL_MARGIN: Final = 1e-7
"""Minimum distance of a refusal from an admission, as a share of the job's utility.

Far above rounding errors of costs and the tolerance of the search over slots.
"""
_MIN_PRECISE_UTILITY: Final = 1e-280  # utility below which numbers lose their precision


@dataclass(frozen=True, slots=True, eq=False)
class DecisionInputs:
    """Inputs of an arriving job's decision besides reservations."""

    constants: Sequence[PriceConstants]  # of each pool
    divided: bool = False  # whether servers for both roles are divided between the pools

    @property
    def key(self) -> bytes:
        """A key that is equal for equal terms only."""
        lower = np.array([pool.ln_lower for pool in self.constants] + [float(self.divided)])
        return b"".join([lower.tobytes(), *(pool.ln_upper.tobytes() for pool in self.constants)])

    def ln_cheapest(self, other: DecisionInputs) -> float:
        """Return ln of a lower bound on the ratio of each price to that of other inputs, at most 0.

        A price is L (U / L)^y at load y between 0 and 1. So its logarithm changes by no less than
        the smaller change of ln L and ln U. Prices that were 0 can't fall. The result is ``-inf``
        without a bound.
        """
        if self.divided is not other.divided:
            return -math.inf
        bound = 0.0
        for pool, other_pool in zip(self.constants, other.constants, strict=True):
            priced = ~np.isneginf(other_pool.ln_upper)
            if not priced.any():
                continue
            if not (math.isfinite(pool.ln_lower) and math.isfinite(other_pool.ln_lower)):
                return -math.inf
            change = float((pool.ln_upper[priced] - other_pool.ln_upper[priced]).min())
            bound = min(bound, pool.ln_lower - other_pool.ln_lower, change)
        return bound


class Shortfall(NamedTuple):
    """Distance of a refused job from an admission."""

    worth: float  # maximum utility of the job
    bound: float  # upper bound of the payoff of every schedule; -inf if none completes the work

    def remains(self, ln_cheapest: float) -> bool:
        """Return whether the job is surely refused at other prices, with equal reservations.

        Let no schedule's payoff exceed P, and let each price be at least r times its former value,
        r <= 1. A schedule with utility u and cost c then has a payoff of at most u - r c = r (u -
        c) + (1 - r) u <= r P + (1 - r) u. ``ln_cheapest`` is ln r.
        """
        if math.isinf(self.bound):  # doesn't fit, or the price overflows
            return ln_cheapest == 0.0
        if self.worth < _MIN_PRECISE_UTILITY:
            return False
        ratio = math.exp(ln_cheapest)
        return ratio * self.bound + (1.0 - ratio) * self.worth <= -REFUSAL_MARGIN * self.worth
