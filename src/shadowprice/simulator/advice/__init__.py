"""Changes that would have admitted a refused job; every answer is verified."""

from shadowprice.simulator.advice.advisor import advise, advise_together, repeats_once
from shadowprice.simulator.advice.many import with_advice

__all__ = ["advise", "advise_together", "repeats_once", "with_advice"]
