"""Changes that would have admitted a refused job; every answer is verified."""

from shadowprice.simulator.advice.advisor import (
    add_advice,
    advise,
    advise_together,
    one_replay_suffices,
)

__all__ = ["add_advice", "advise", "advise_together", "one_replay_suffices"]
