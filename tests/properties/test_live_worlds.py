"""The live service in random worlds, under every policy: each admitted job ends, and stays
recorded.

Jobs take 1 to 50 % longer or shorter than they state, start late, run on servers of unlike speed
that are lost, drained and return, with and without checkpoints and reports, while the service is
stopped and killed. Time is virtual. `SHADOWPRICE_TEST_WORLDS=10000` sets the number of worlds.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.support.examples import RUN_ALL
from tests.support.virtual_worlds import (
    LIVE,
    draw_hanging_world,
    draw_world,
    play,
    smallest,
    violations,
)

WORLDS: Final = int(os.environ.get("SHADOWPRICE_TEST_WORLDS", (20 if RUN_ALL else 3) * len(LIVE)))
"""Number of worlds, each under one policy."""


@pytest.mark.parametrize("policy", LIVE)
def test_admitted_jobs_end_and_no_stop_loses_work(policy: str) -> None:
    for seed in range(LIVE.index(policy), WORLDS, len(LIVE)):
        broken = violations(play(draw_world(seed), policy))
        if broken:
            world = smallest(draw_world(seed), policy)
            pytest.fail(f"seed {seed}: {broken}\nsmallest world: {world}")


@pytest.mark.parametrize("policy", LIVE)
def test_jobs_that_hang_end_at_their_limit(policy: str) -> None:
    for seed in range(LIVE.index(policy), max(len(LIVE), WORLDS // 3), len(LIVE)):
        played = play(draw_hanging_world(seed), policy)
        broken = violations(played)
        if broken:
            world = smallest(draw_hanging_world(seed), policy)
            pytest.fail(f"seed {seed}: {broken}\nsmallest world: {world}")
