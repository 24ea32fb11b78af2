"""Advice on refused jobs: changes that would have admitted them, each verified."""

from shadowprice.simulator.advice.advisor import (
    add_advice,
    advise,
    advise_together,
    one_replay_suffices,
)

__all__ = ["add_advice", "advise", "advise_together", "one_replay_suffices"]
