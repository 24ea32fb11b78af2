"""The terms on which arriving jobs are decided, and by how much prices differ between two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from shadowprice.policies.pricing.constants import PriceConstants

SURE: Final = 1e-7
"""Part of a job's worth by which a refusal must not be close: far above what rounding does to costs
and what the search over slots tolerates."""
_TINY: Final = 1e-280
"""Worth below which numbers lose their digits."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What, beside the reservations, an arriving job's decision depends on.

    Parameters
    ----------
    constants : sequence of PriceConstants
        L and U of each pool.
    divided : bool
        Whether servers for both kinds are divided between the pools.
    """

    constants: Sequence[PriceConstants]
    divided: bool = False

    @property
    def key(self) -> bytes:
        """The same for equal terms only."""
        lower = np.array([one.ln_lower for one in self.constants] + [float(self.divided)])
        return b"".join([lower.tobytes(), *(one.ln_upper.tobytes() for one in self.constants)])

    def ln_cheapest(self, other: Terms) -> float:
        """Return ln of a factor below which no price of these terms is of the other's, 0 at most.

        A price is L (U / L)^y with y from 0 to 1 the load, so between two terms its logarithm
        moves by no less than the lesser of what ln L and ln U move by. What was free stays as
        cheap whatever it costs now.

        Parameters
        ----------
        other : Terms
            Of the same job set but for a job.

        Returns
        -------
        float
            ``-inf`` where nothing is known of it.
        """
        if self.divided is not other.divided:
            return -math.inf
        least = 0.0
        for now, then in zip(self.constants, other.constants, strict=True):
            priced = ~np.isneginf(then.ln_upper)
            if not priced.any():
                continue
            if not (math.isfinite(now.ln_lower) and math.isfinite(then.ln_lower)):
                return -math.inf
            moved = float((now.ln_upper[priced] - then.ln_upper[priced]).min())
            least = min(least, now.ln_lower - then.ln_lower, moved)
        return least


class Shortfall(NamedTuple):
    """How far a refused job was from an admission.

    Attributes
    ----------
    worth : float
        The most that it could have been worth.
    bound : float
        No schedule pays more; ``-inf`` where none completes the work.
    """

    worth: float
    bound: float

    def remains(self, ln_cheapest: float) -> bool:
        """Whether the job is refused for certain, with the same reservations, at other prices.

        Let no schedule pay more than P, and no price fall below r times what it was, r <= 1. Then a
        schedule that is worth u and cost c pays u - r c = r (u - c) + (1 - r) u <= r P + (1 - r) u
        at most.

        Parameters
        ----------
        ln_cheapest : float
            ln r, of `Terms.ln_cheapest`.
        """
        if math.isinf(self.bound):  # no room; but what is too dear for numbers counts as none
            return ln_cheapest == 0.0
        if self.worth < _TINY:
            return False
        ratio = math.exp(ln_cheapest)
        return ratio * self.bound + (1.0 - ratio) * self.worth <= -SURE * self.worth
