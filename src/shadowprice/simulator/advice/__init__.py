"""Changes that would have admitted a refused job; every answer is verified."""

from shadowprice.simulator.advice.advisor import advise, advise_together, one_replay_suffices
from shadowprice.simulator.advice.many import add_advice

__all__ = ["add_advice", "advise", "advise_together", "one_replay_suffices"]
