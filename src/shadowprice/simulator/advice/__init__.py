"""What would have had a refused job admitted, each answer verified before it is given."""

from shadowprice.simulator.advice.advisor import advise, advise_together, repeats_once
from shadowprice.simulator.advice.many import with_advice

__all__ = ["advise", "advise_together", "repeats_once", "with_advice"]
